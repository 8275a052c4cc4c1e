"""The spool keeps its order, its bound and its records, whatever happens to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from producers.gateway import spool as module
from producers.gateway.spool import Spool, SpoolFull, SpoolInUse
from schemas.envelope import WireRecord


def record(number: int, size: int = 10) -> WireRecord:
    return WireRecord(key=b"s", value=b"%d" % number + b"\xff" * size, headers=[("ce_id", b"\x00%d" % number)])


def drain(spool: Spool) -> list[WireRecord]:
    out = []
    while (segment := spool.oldest()) is not None:
        path, records = segment
        assert records is not None
        out += records
        spool.remove(path)
    return out


def test_what_went_in_comes_out_in_order_after_a_restart(tmp_path: Path) -> None:
    records = [record(n) for n in range(5)]
    first = Spool(tmp_path, 1 << 20)
    first.append(records[:2])
    first.append(records[2:4])
    first.close()
    second = Spool(tmp_path, 1 << 20)
    assert not second.empty
    second.append(records[4:])
    assert drain(second) == records
    assert second.empty
    assert second.bytes == 0
    assert list(tmp_path.glob("*.jsonl")) == []


def test_records_that_come_while_it_is_sent_go_behind(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.append([record(0)])
    segment = spool.oldest()
    assert segment is not None
    spool.append([record(1)])
    assert segment[1] == [record(0)]
    spool.remove(segment[0])
    assert drain(spool) == [record(1)]


def test_segments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEGMENT_BYTES", 200)
    spool = Spool(tmp_path, 1 << 20)
    for n in range(10):
        spool.append([record(n)])
    assert len(list(tmp_path.glob("*.jsonl"))) > 2
    assert drain(spool) == [record(n) for n in range(10)]


def test_a_line_cut_by_a_crash_is_not_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.append([record(0), record(1)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-5])
    assert drain(Spool(tmp_path, 1 << 20)) == [record(0)]


def test_a_damaged_segment_is_told_and_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.append([record(0)])
    spool.close()
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(b"no json\n")
    again = Spool(tmp_path, 1 << 20)
    segment = again.oldest()
    assert segment == (file, None)
    again.set_aside(file)
    assert again.empty
    assert len(list(tmp_path.glob("*.damaged"))) == 1


def test_beyond_its_bound_it_keeps_nothing_more(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    spool.append([record(0)])
    with pytest.raises(SpoolFull):
        spool.append([record(1), record(2, size=1000)])
    spool.append([record(3)])
    assert drain(spool) == [record(0), record(3)]


def test_a_full_disk_leaves_whole_records_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.append([record(0)])

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            spool.append([record(1)])
    spool.append([record(2)])
    assert drain(spool) == [record(0), record(2)]


def test_two_processes_cannot_share_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    with pytest.raises(SpoolInUse, match="another gateway"):
        Spool(tmp_path, 1000)
    spool.close()
    Spool(tmp_path, 1000).close()
