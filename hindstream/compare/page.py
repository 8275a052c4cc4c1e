"""A comparison as one HTML file that opens from disk: the tables and the learning curves, nothing to load."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Any

from hindstream.compare.figures import SHOWN, Comparison
from hindstream.compare.report import LIMIT, tables

if TYPE_CHECKING:  # it loads torch, which most comparisons do not need
    from hindstream.compare.held_out import HeldOut

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:62em;color:#222}"
    "table{border-collapse:collapse;margin:0 0 2em}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}h2{font-size:1.1em}"
)


def page(comparison: Comparison, held: HeldOut | None) -> str:
    """The whole page."""
    a, b = html.escape(comparison.a.run), html.escape(comparison.b.run)
    parts = [f"<h1>{a} and {b}</h1>", f"<p>{html.escape(LIMIT)}</p>"]
    picture = _curves(comparison)
    for table in tables(comparison, held):
        parts += [f"<h2>{html.escape(str(table.title))}</h2>", _table(table)]
    if picture is not None:
        encoded = base64.b64encode(picture).decode("ascii")
        parts += ["<h2>By step</h2>", f'<img alt="metrics by step" src="data:image/png;base64,{encoded}">']
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{a} and {b}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(table: Any) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    head = line([str(column.header) for column in table.columns], "th")
    return f"<table>{head}{''.join(line(list(row), 'td') for row in zip(*columns, strict=True))}</table>"


def _curves(comparison: Comparison) -> bytes | None:
    """PNG of the metrics that at least one run has; None where no step was taken."""
    names = [name for name in SHOWN if name in comparison.a.curves or name in comparison.b.curves]
    if not names:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = (len(names) + 1) // 2
    figure, grid = pyplot.subplots(rows, 2, figsize=(10, 2.6 * rows), layout="constrained", squeeze=False)
    places = [axes for line in grid for axes in line]
    for axes, name in zip(places, names, strict=False):
        for run in (comparison.a, comparison.b):
            curve = run.curves.get(name)
            if curve is not None:
                axes.plot(curve.steps, curve.values, marker=".", label=run.run)
                axes.set_ylabel(curve.unit)
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("step")
    for axes in places[len(names) :]:
        axes.axis("off")
    places[0].legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot.close(figure)
    return buffer.getvalue()
