"""How long the ranks of a pipeline wait for each other.

With m micro-batches, p ranks and v stages on each: 1F1B and GPipe idle (p - 1) / m of the ideal time, an
interleaved schedule (p - 1) / (v m), zero-bubble schedules a third of 1F1B (gradients of weights fill the
gaps). The slowest stage sets the pace of the steady part; filling and draining pass through all others once.
"""

from __future__ import annotations

ZERO_BUBBLE_SHARE = 1.0 / 3.0


def idle_share(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> float:
    """Idle time over ideal time, stages being equal: the published formulas."""
    if pipeline <= 1:
        return 0.0
    return _waits(schedule, pipeline, virtual) / micro_batches


def _waits(schedule: str, pipeline: int, virtual: int) -> float:
    if schedule == "ZBV":
        return (pipeline - 1) * ZERO_BUBBLE_SHARE
    return (pipeline - 1) / virtual


def seconds(
    schedule: str, pipeline: int, virtual: int, micro_batches: int, slowest: float, mean: float
) -> tuple[float, float]:
    """(busy, waiting) of the slowest stage, whose micro-batch takes `slowest`; `mean` is that of all stages."""
    busy = micro_batches * slowest
    if pipeline <= 1:
        return busy, 0.0
    others = (pipeline * mean - slowest) / (pipeline - 1)
    return busy, _waits(schedule, pipeline, virtual) * others
