"""What people ask of a predicted step: tokens a second, utilisation with its formula, what is waited for,
what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.cost.compute import shapes
from trainingrun.planner.cost.types import Step, Workload


@dataclass(frozen=True)
class Figures:
    seconds: float
    tokens_per_second: float
    tokens_per_second_each: float  # of one accelerator
    flops_each: float  # of the model, a second, on one accelerator
    utilisation: float  # of the data sheet's rate in the workload's format (MFU)
    equation: str  # how `utilisation` came about, with its numbers
    bubble: float  # share of the step, 0..1
    exposed: float  # share of the step that ranks wait for sends, 0..1
    price_per_billion_tokens: float | None  # None where the machine has no price


def figures(work: Workload, step: Step) -> Figures:
    seconds, world = step.total, work.layout.world
    tokens = work.global_batch * work.sequence_length
    peak = work.machine.peak_flops.get(work.numerics.compute) or max(work.machine.peak_flops.values())
    each = step.model_flops / seconds / world
    sent = step.tensor + step.context + step.pipeline + step.expert + step.data
    price = None
    if work.machine.price_per_hour is not None:
        nodes = world / work.machine.accelerators
        price = work.machine.price_per_hour * nodes * seconds / 3600 * 1e9 / tokens
    return Figures(
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_second_each=tokens / seconds / world,
        flops_each=each,
        utilisation=each / peak,
        equation=equation(work, step, peak),
        bubble=step.bubble / seconds,
        exposed=sent / seconds,
        price_per_billion_tokens=price,
    )


def equation(work: Workload, step: Step, peak: float) -> str:
    """Model FLOPs utilisation: nothing that is recomputed counts, and attention counts as causal (half of
    the square).
    """
    model, sequence = work.model, work.sequence_length
    sums = shapes(model, 1, 1)
    weights = sums.weights + (1 + sums.extra_heads) * sums.vocabulary * sums.hidden
    if model.experts:
        weights += model.experts.per_token * sums.expert_weights
    attention = sums.attention * sequence / 2 + sums.windowed * min(
        sequence, model.sliding_window or sequence
    )
    tokens = work.global_batch * sequence
    return (
        f"3 x 2 x {tokens} tokens x ({weights:.4g} weights that a token passes + {attention:.4g} of causal attention)"
        f" = {step.model_flops:.4g} FLOPs; / {step.total:.4g} s / {work.layout.world} accelerators"
        f" / {peak:.4g} FLOP/s = {step.model_flops / step.total / work.layout.world / peak:.1%}"
    )
