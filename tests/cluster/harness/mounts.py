"""Mounts below a folder: found in the kernel's table, removed innermost first."""

from __future__ import annotations

import ctypes
from pathlib import Path

MNT_DETACH = 2
TABLE = Path("/proc/self/mountinfo")


def below(folder: Path) -> list[Path]:
    """Mount points at or under the folder, innermost first."""
    points = (Path(_decoded(line.split()[4])) for line in TABLE.read_text().splitlines())
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def remove_below(folder: Path) -> None:
    """Detaches them. What the kernel refuses stays in the table, where `below` finds it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in below(folder):
        libc.umount2(str(point).encode(), MNT_DETACH)


def _decoded(field: str) -> str:
    """The kernel writes blanks and the like in octal."""
    return field.encode().decode("unicode_escape") if "\\" in field else field
