"""Numbers as people read them. Used by reasons, errors and the CLI; nothing parses it."""

from __future__ import annotations

from trainingrun.planner.layout import Cut

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def human_bytes(count: int) -> str:
    """9.1 GiB, 512 MiB, 37 B."""
    for scale, unit in _UNITS:
        if count >= scale:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{count} B"


def human_seconds(seconds: float) -> str:
    """1.2 s, 340 ms, 2.1 h."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 3600:.2g} h"


def human_count(number: float) -> str:
    """8.03 B, 1.05 M, 820."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g}"


def cut_name(cut: Cut) -> str:
    if cut.zero:
        return f"ZeRO {cut.zero} x shard {cut.shard}"
    return f"tensor {cut.tensor} x pipeline {cut.pipeline} x shard {cut.shard}"


def counted(number: int, one: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
