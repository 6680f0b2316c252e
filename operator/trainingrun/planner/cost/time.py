"""How long a step takes: work by shape, what is sent and not hidden, and who waits for whom.

    stage   a micro-batch's products, attention, elements, recomputation and exposed sends of tensor, context
    and
            expert ranks; or the host's time to start all that, if it is longer
    step    micro-batches of the slowest stage + bubble + transfers + gradients and weights of data ranks
            + optimizer + a constant

Coefficients are fitted (`fitted`; for CPU cores `cpu_times`); shapes, links and formulas are not. Pure, and
fast: searches call it for each candidate.
"""

from __future__ import annotations

from trainingrun.planner.cost import fitted, layers
from trainingrun.planner.cost.collectives import transfer
from trainingrun.planner.cost.compute import flops_per_token, shapes
from trainingrun.planner.cost.cpu_times import CPU_TIMES
from trainingrun.planner.cost.data_parallel import between_steps
from trainingrun.planner.cost.pipeline import seconds as pipeline_seconds
from trainingrun.planner.cost.rates import CPU, rates
from trainingrun.planner.cost.types import Layout, Step, Workload

_SHARPNESS = 4.0  # of the change from what the accelerator to what the host takes
_FAR = 1 << 30  # ranks: in another domain


def step_time(work: Workload) -> Step:
    model, layout, machine, framework = work.model, work.layout, work.machine, work.framework
    on_cores = machine.name == CPU
    c = CPU_TIMES if on_cores else fitted.FRAMEWORKS.get(framework.times or framework.name, fitted.COMMON)
    sums = shapes(model, layout.tensor, layout.expert_tensor)
    rate = rates(machine, work.numerics.compute)
    pipeline, micro_batches = layout.pipeline, layout.accumulation

    inside = (
        layers.products(work, sums, rate, c)
        + layers.attention(work, sums, rate, c)
        + layers.elements(work, sums, rate, c)
    )
    tensor, context, expert = layers.sends(work, sums, c)
    each = inside + tensor + context + expert
    head = layers.head(work, sums, rate, c)
    stage, head_there, most = _slowest_stage(layout, each, head)

    busy = stage * each + head_there
    starts = layers.starting(work, sums, rate, c) * most + c["start_stage"] * rate.host * layout.virtual
    # A core starts operations and computes them, one after the other; an accelerator computes meanwhile.
    unit = busy + starts if on_cores else (busy**_SHARPNESS + starts**_SHARPNESS) ** (1.0 / _SHARPNESS)
    late = unit - busy
    mean = (each + head) / pipeline + late
    _, bubble = pipeline_seconds(
        layout.schedule, pipeline, layout.virtual, micro_batches, unit, min(unit, mean)
    )
    data, update = between_steps(work, unit, c, rate.memory, max(1.0, sums.layers / pipeline))
    return Step(
        compute=(inside * stage + head_there) * micro_batches,
        bubble=c["idle"] * bubble,
        tensor=tensor * stage * micro_batches,
        context=context * stage * micro_batches,
        pipeline=_transfers(work, c["transfer_exposed"], sums.hidden),
        expert=expert * stage * micro_batches,
        data=data,
        optimizer=update,
        other=(late + c["load_batch"]) * micro_batches + c["start_step"],
        model_flops=flops_per_token(model, work.sequence_length) * work.sequence_length * work.global_batch,
        flops_rule="causal",
    )


def _slowest_stage(layout: Layout, each: float, head: float) -> tuple[float, float, float]:
    """(share of the layers, seconds of the head) of the slowest stage, and the largest share of any. The
    last one has the head; where layers are spread unevenly, the fullest may be another one.
    """
    most = last = 1.0 / layout.pipeline
    if layout.stage_layers:
        whole = float(sum(layout.stage_layers)) or 1.0
        most, last = max(layout.stage_layers) / whole, layout.stage_layers[-1] / whole
    if most * each > last * each + head:
        return most, 0.0, most
    return last, head, most


def _transfers(work: Workload, exposed: float, hidden: int) -> float:
    """Hidden states between stages, there and back. Stages of a job that fills domains are taken to lie in
    different ones.
    """
    layout, machine = work.layout, work.machine
    if layout.pipeline == 1:
        return 0.0
    shared = layout.tensor if layout.sequence_parallel else 1
    message = layers.micro_batch_tokens(work) * hidden * work.numerics.activations / shared
    stride = layout.tensor * layout.context * layout.data
    one = transfer(message, machine, _FAR if machine.domain else stride, 2)
    return exposed * 2.0 * layout.virtual * (layout.accumulation + layout.pipeline - 1) * one
