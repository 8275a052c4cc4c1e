"""The table of docs/metrics.md, made from the definitions: `python -m learner.watching.page` writes it again."""

from __future__ import annotations

from pathlib import Path

from learner.watching.definitions import DEFINITIONS
from learner.watching.prometheus import prometheus_name

FILE = Path(__file__).parents[2] / "docs" / "metrics.md"

_BEGIN, _END = "<!-- made by python -m learner.watching.page: do not edit -->\n", "<!-- end -->\n"


def render(page: str) -> str:
    """`page` with its table made again.

    Raises:
        ValueError: the page has lost the marks that the table stands between.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{FILE} needs the lines {_BEGIN.strip()} and {_END.strip()}")
    return before + begin + table() + end + after


def table() -> str:
    """One row a metric, by heading."""
    parts = []
    for heading in dict.fromkeys(one.heading for one in DEFINITIONS.values()):
        rows = [
            f"| `{one.name}` | {one.unit or '–'} | {_cell(one.help)} | `{prometheus_name(one.name)}` |"
            for one in DEFINITIONS.values()
            if one.heading == heading
        ]
        parts.append(f"### {heading}\n\n| metric | unit | what it says | in Prometheus |\n|---|---|---|---|\n")
        parts[-1] += "\n".join(rows) + "\n"
    return "\n" + "\n".join(parts) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(render(FILE.read_text()))
