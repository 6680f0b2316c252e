"""How many layers' activations a pipeline rank holds at its fullest, by schedule.

1F1B: rank r of p starts p - r micro-batches before the first comes back. Interleaved: 2 (p - r - 1) + (v - 1)
g + 1 turns, g micro-batches going through one stage before the next one takes its turn (g = p unless told
otherwise). GPipe: all. ZBV: p on each rank.
"""

from __future__ import annotations

from functools import lru_cache

from trainingrun.planner.cost.types import Layout


@lru_cache(maxsize=65536)
def stage_range(layers: int, pipeline: int, stage_layers: tuple[int, ...], rank: int) -> tuple[int, int]:
    """First layer of a pipeline rank and the one after its last, as if its stages were neighbours."""
    if stage_layers:
        begin = sum(stage_layers[:rank])
        return begin, begin + stage_layers[rank]
    return layers * rank // pipeline, layers * (rank + 1) // pipeline


def layers_in_flight(layout: Layout, layers: int, rank: int, group: int = 0) -> float:
    """Layers x micro-batches that rank `rank`, which has `layers`, keeps at most."""
    pipeline, steps = layout.pipeline, layout.accumulation
    if pipeline == 1:
        return layers
    if layout.schedule == "GPipe":
        return layers * steps
    if layout.schedule == "ZBV":
        return layers * min(steps, pipeline)
    stages = layout.virtual
    if stages == 1:
        return layers * min(steps, pipeline - rank)
    turns = min(steps * stages, 2 * (pipeline - rank - 1) + (stages - 1) * (group or pipeline) + 1)
    each, rest = divmod(layers, stages)
    if not rest:
        return turns * each
    return _uneven(layers, stages, turns, group or pipeline, first=rank == 0)


def _uneven(layers: int, stages: int, turns: int, group: int, *, first: bool) -> float:
    """Where embedding or head stand in for a layer, the first rank's first stage or the last rank's last is short."""
    each = -(-layers // stages)
    short = each * stages - layers
    held = 0
    for turn in range(turns):
        stage = turn // group % stages
        held += each - (short if stage == (0 if first else stages - 1) else 0)
    return held
