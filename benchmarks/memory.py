"""How much memory a process has."""

from __future__ import annotations

from pathlib import Path


def resident_mb(pid: int) -> float:
    """Resident memory of process `pid`, MB of 2^20 bytes; Linux."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
