"""What one would use without the cost model: one utilisation for each kind of accelerator and format, and the memory
formula that Megatron-LM itself prints.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from benchmarks.planner_accuracy.cells import outcome
from benchmarks.planner_accuracy.rows import Reading, Row, RowError, read_row
from trainingrun.planner.cost.inflight import stage_range
from trainingrun.planner.cost.states import shards
from trainingrun.planner.cost.types import Sharding
from trainingrun.planner.models import counts
from trainingrun.planner.models.flops import flops_per_token


def _read(row: Row) -> Reading | None:
    try:
        return read_row(row)
    except RowError:
        return None


def constant_utilisation(rows: Sequence[Row]) -> dict[int, float]:
    """Seconds by identity of the row. The utilisation of a kind is the median of the rows themselves, where measured:
    better than anybody could do beforehand.
    """
    ideal: dict[int, float] = {}
    kinds: dict[int, tuple[str, str]] = {}
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        reading = _read(row)
        if reading is None:
            continue
        work = reading.timed
        peak = work.machine.peak_flops.get(work.numerics.compute) or max(work.machine.peak_flops.values())
        flops = flops_per_token(work.model, work.sequence_length) * work.sequence_length * work.global_batch
        ideal[id(row)] = flops / peak / work.layout.world
        kinds[id(row)] = (work.machine.name, work.numerics.compute)
        measured = outcome(row, "step_time_s")
        if not math.isnan(measured):
            shares[kinds[id(row)]].append(ideal[id(row)] / measured)
    return {
        key: seconds / median(shares[kinds[key]]) for key, seconds in ideal.items() if shares.get(kinds[key])
    }


def megatron_formula(row: Row) -> float:
    """GiB by `theoretical_memory_usage` of Megatron-LM: 18 bytes a parameter (6 and 12 shared), and activations of a
    GPT layer with sequence parallelism, whatever the layer is. It knows no experts' activations and no workspaces.
    """
    reading = _read(row)
    if reading is None:
        return math.nan
    work = reading.workload
    model, layout = work.model, work.layout
    begin, end = stage_range(model.layers, layout.pipeline, layout.stage_layers, 0)
    stack = counts.stack(model, begin, end, layout.tensor, layout.expert, layout.expert_tensor)
    parameters = stack.total + counts.embedding(model, layout.tensor)
    if layout.pipeline == 1:
        parameters += counts.final(model, layout.tensor)
    each = 18.0
    if layout.sharding is Sharding.OPTIMIZER:
        each = 6.0 + 12.0 / shards(layout)[0]
    tokens = layout.micro_batch * work.sequence_length / layout.context
    ratio = model.intermediate_size / model.hidden_size
    layer = tokens * model.hidden_size * (18 + 4 * ratio)
    activations = layer * model.layers / layout.pipeline
    activations += 8 * tokens * layout.pipeline + tokens * model.hidden_size * layout.pipeline
    if layout.virtual > 1:
        activations *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.virtual)
    elif layout.pipeline > 1:
        activations *= min(layout.accumulation, layout.pipeline)
    if layout.pipeline == 1:
        activations += (
            tokens * model.hidden_size * 4 * (1 + counts.vocabulary_rows(model) / model.hidden_size)
        )
    return (parameters * each + activations / layout.tensor) / (1 << 30)
