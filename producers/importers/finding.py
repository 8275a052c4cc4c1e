"""Which files an import is about, and which importer reads each: from paths, directories and patterns as typed."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from producers.importers.base import Importer
from producers.importers.detect import Head, head_of

log = logging.getLogger(__name__)


class NotImportable(ValueError):
    """A file that was asked for by name cannot be imported: why, and what to do.

    Args:
        why: the reason, without the file's name.
        advice: what else a person needs who asked for this file.
    """

    def __init__(self, what: object, why: str, advice: str = "") -> None:
        super().__init__(f"{what}: {why}{advice}")
        self.why = why


@dataclass(frozen=True)
class Found:
    """One file and who reads it."""

    path: Path
    importer: Importer


@dataclass
class Findings:
    """What is imported, in order, and what in a directory or pattern is left out: the path and why."""

    files: list[Found] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def find(given: Iterable[str], importers: Mapping[str, Importer], format_name: str | None = None) -> Findings:
    """The files behind `given`: each a file, a directory (with all below it) or a pattern such as `logs/**/*.jsonl`.

    A file named as such must be importable, and is read as `format_name` where that is given. What else lies in a
    directory, or fits a pattern, is left out with the reason; there `format_name` decides where several formats fit.

    Raises:
        NotImportable: a file has no format that is known, or several; there is no such file or format.
        OSError: a file cannot be opened.
    """
    if format_name is not None and format_name not in importers:
        raise NotImportable(format_name, f"there is no such format; there are {', '.join(importers)}")
    findings, seen = Findings(), set[Path]()
    companions = [pattern for one in importers.values() for pattern in getattr(one, "COMPANIONS", ())]
    for text in given:
        for path, named in _expand(text, importers):
            if path in seen:
                continue
            seen.add(path)
            if not named and any(path.match(pattern) for pattern in companions):
                continue
            try:
                findings.files.append(Found(path, _importer(path, importers, format_name, named)))
            except NotImportable as err:
                if named:
                    raise
                findings.skipped.append((path, err.why))
    return findings


def candidates(head: Head, importers: Mapping[str, Importer]) -> list[str]:
    """The names of the formats that a file which begins so may have."""
    return [name for name, importer in importers.items() if _sniffs(name, importer, head)]


def _sniffs(name: str, importer: Importer, head: Head) -> bool:
    try:
        return importer.sniff(head)
    except Exception:  # a fault of one importer, perhaps of another package, must not take the other formats away
        log.exception("the importer %s failed to look at %s; it counts as none of its files", name, head.name)
        return False


def _expand(text: str, importers: Mapping[str, Importer]) -> Iterator[tuple[Path, bool]]:
    """Paths, and whether each was named as such."""
    path = Path(text)
    if path.is_dir():
        yield from ((below, False) for below in _below(path))
    elif path.exists() or not glob.has_magic(text):
        if not path.exists() and text in importers:
            raise NotImportable(text, "no such file", f"; a format is found by itself, or given as --format {text}")
        yield path, True
    else:
        matches = sorted(Path(match) for match in glob.glob(text, recursive=True))
        if not matches:
            raise NotImportable(text, "no file fits this pattern")
        for match in matches:
            yield from ((below, False) for below in (_below(match) if match.is_dir() else [match]))


def _below(directory: Path) -> list[Path]:
    """Every file below, hidden ones left out."""
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(directory).parts)]


def _importer(path: Path, importers: Mapping[str, Importer], format_name: str | None, named: bool) -> Importer:
    head = head_of(path)
    if format_name is not None and named:
        return importers[format_name]
    if not head.data.strip():
        raise NotImportable(path, "the file is empty")
    names = candidates(head, importers)
    if format_name is not None and format_name in names:
        return importers[format_name]
    if not names:
        known = f" ({', '.join(importers)}); give it with --format if it is one of them"
        raise NotImportable(path, "of no format that is known", known)
    if len(names) > 1:
        raise NotImportable(path, f"may be {' or '.join(names)}; say which with --format")
    if format_name is not None:
        raise NotImportable(path, f"is {names[0]}, not {format_name}")
    return importers[names[0]]
