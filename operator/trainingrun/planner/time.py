"""Predicted time of a step of our own trainer: `planner.cost` for one copy, and what copies and shards send.

    compute, bubble, starting   `cost.time.step_time` of one data rank of one copy
    stages                      a hidden state each way for each stage and micro-batch
    shards                      weights gathered for forward and backward of each micro-batch (once a step in a
                                pipeline, whose stages stay gathered), gradients scattered once a step
    replicas, context ranks     one all-reduce of the gradients of a shard
    optimizer                   its passes over memory, and Muon's products

Who is whose neighbour follows from the order of ranks (`planner.layout`): tensor, context, shard, pipeline, replicate.
Links, collectives, bubbles and coefficients are the cost model's. Pure arithmetic; no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainingrun.planner import zero
from trainingrun.planner.cost.collectives import all_reduce, gather, group_link, transfer
from trainingrun.planner.cost.pipeline import idle_share
from trainingrun.planner.cost.rates import CPU, rates
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import Machine, Recompute, Step, Workload
from trainingrun.planner.costing import coefficients, machine_of, workload_of
from trainingrun.planner.layout import Cut
from trainingrun.planner.models import flops
from trainingrun.planner.optimizer_state import update_flops, update_passes
from trainingrun.planner.parameters import StageParameters, matmul_parameters, stage_parameters
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape

_ADAMW_PASSES = 7  # what the cost model's update is about
_UPDATE_BYTES = 14.0  # of a parameter, beside two moments read and written: master, gradient and weight


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by part. `flops` counts the sequences that weigh, not the padding."""

    compute: float
    bubble_seconds: float
    communication: float  # exposed
    optimizer: float
    starting: float  # of operations and of batches, where computing does not hide it
    bubble: float  # share of the step that a rank waits for others: 1F1B (p-1)/(m+p-1)
    flops: float

    @property
    def total(self) -> float:
        return self.compute + self.bubble_seconds + self.communication + self.optimizer + self.starting


def model_flops(model: ModelShape, training: TrainingShape, sequences: int) -> float:
    """FLOPs of forward and backward over `sequences` sequences; attention counts the whole square."""
    each = flops.flops_per_token(model, training.sequence_length, attention="whole")
    return float(sequences * training.sequence_length * each)


def predict(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    replicate: int,
    micro_batch: int,
    accumulation: int,
) -> StepTime:
    """The step time of `replicate` copies of this cut."""
    machine = machine_of(node)
    c = coefficients(machine)
    work = workload_of(model, training, node, cut, micro_batch=micro_batch, accumulation=accumulation)
    step, again = _steps(work, training)
    compute = _mixed(step.compute, again.compute, training)
    inside = _mixed(step.tensor + step.context, again.tensor + again.context, training)
    moving = (
        inside
        + _between_stages(work, cut, c)
        + _between_data_ranks(model, training, machine, cut, replicate, accumulation, compute, c)
    )
    idle = idle_share(cut.schedule, cut.pipeline, work.layout.virtual, accumulation)
    return StepTime(
        compute=compute,
        bubble_seconds=_mixed(step.bubble, again.bubble, training),
        communication=moving,
        optimizer=_update(model, training, machine, cut, c),
        starting=_mixed(step.other, again.other, training),
        bubble=idle / (1.0 + idle),
        flops=model_flops(model, training, training.global_batch_sequences),
    )


def _steps(work: Workload, training: TrainingShape) -> tuple[Step, Step]:
    """Without and with layers that are computed twice; the same one twice where only one counts."""
    mode = training.activation_checkpointing
    if mode not in ("Selective", "Full"):
        step = step_time(work)
        return step, step
    full = step_time(replace(work, layout=replace(work.layout, recompute=Recompute.FULL)))
    return (full if mode == "Full" else step_time(work)), full


def _mixed(once: float, twice: float, training: TrainingShape) -> float:
    """Every second layer is computed twice."""
    return 0.5 * (once + twice) if training.activation_checkpointing == "Selective" else once


def least_seconds(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    replicate: int,
    sequence_seconds: float,
) -> float:
    """No micro-batch makes a step of `replicate` copies of this cut faster than this.

    What a micro-batch takes grows with its sequences along a line, and begins above nothing: so all of them together
    take at least `sequence_seconds` for each sequence of a data rank. Waiting and starting are left out; what shards
    send hides at most in part, and is least with one micro-batch.
    """
    machine = machine_of(node)
    c = coefficients(machine)
    share = -(-training.global_batch_sequences // (replicate * cut.shard))
    sent = _between_data_ranks(model, training, machine, cut, replicate, 1, float("inf"), c)
    return share * sequence_seconds + sent + _update(model, training, machine, cut, c)


def sequence_seconds(model: ModelShape, training: TrainingShape, node: NodeShape, cut: Cut) -> float:
    """Of computing and of sends inside layers, for one more sequence of a micro-batch. The shard does not matter."""
    busy = []
    for size in (1, 2):
        work = workload_of(model, training, node, cut, micro_batch=size, accumulation=1)
        step, again = _steps(work, training)
        busy.append(_mixed(_busy(step), _busy(again), training))
    return busy[1] - busy[0]


def _busy(step: Step) -> float:
    return step.compute + step.tensor + step.context


@lru_cache(maxsize=4096)
def _fullest(model: ModelShape, cut: Cut) -> StageParameters:
    stages = [
        stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank) for stage in cut.ends
    ]
    return max(stages, key=lambda stage: stage.total)


def _between_stages(work: Workload, cut: Cut, c: Mapping[str, float]) -> float:
    """The ranks of a CPU node share its network; accelerators have network cards of their own."""
    if cut.pipeline == 1:
        return 0.0
    layout, machine = work.layout, work.machine
    elements = layout.micro_batch * work.sequence_length / layout.context * work.model.hidden_size
    message = elements * work.numerics.activations
    if machine.name == CPU:
        link = group_link(machine, cut.block, cut.pipeline)
        one = (message + link.half_size_bytes) / link.bytes_per_second + link.latency_seconds
    else:
        one = transfer(message, machine, cut.block, cut.pipeline)
    turns = layout.accumulation + cut.pipeline - 1
    return c["transfer_exposed"] * 2.0 * layout.virtual * turns * one


def _between_data_ranks(
    model: ModelShape,
    training: TrainingShape,
    machine: Machine,
    cut: Cut,
    replicate: int,
    accumulation: int,
    compute: float,
    c: Mapping[str, float],
) -> float:
    """Exposed seconds of what shards gather and scatter, and of the gradients' sum over replicas and context ranks."""
    fullest = _fullest(model, cut)
    whole = float(training.parameter_bytes * fullest.total)
    sharded = 0.0
    if cut.shard > 1:
        link = group_link(machine, cut.context * cut.tensor, cut.shard)
        if cut.zero:
            volume, messages = zero.traffic(training, fullest, cut, accumulation)
            sharded = messages * gather(volume / messages, cut.shard, link)
        else:
            # Weights travel in the format of the computation, gradients in that of the weights.
            messages = fullest.layers + 1
            weights = float(training.activation_bytes * fullest.total)
            gathers = 1 if cut.pipeline > 1 else 2 * accumulation
            sharded = messages * (
                gathers * gather(weights / messages, cut.shard, link)
                + gather(whole / messages, cut.shard, link)
            )
        sharded += c["shard_member"] * cut.shard
    hidden = min(sharded, c["data_hidden"] * compute) if c["data_hidden"] else 0.0
    exposed = sharded - hidden + min(1.0, c["data_contention"]) * hidden
    summed = whole / cut.shard
    if replicate > 1:
        exposed += all_reduce(summed, replicate, group_link(machine, cut.processes, replicate))
    if cut.context > 1:
        exposed += all_reduce(summed, cut.context, group_link(machine, cut.tensor, cut.context))
    return exposed


def _update(
    model: ModelShape, training: TrainingShape, machine: Machine, cut: Cut, c: Mapping[str, float]
) -> float:
    rate = rates(machine, "bf16" if training.activation_bytes == 2 else "fp32")
    own = -(-_fullest(model, cut).total // cut.shard)
    each = 4.0 * training.parameter_bytes + _UPDATE_BYTES * training.parameter_bytes / 4
    passes = update_passes(training) / _ADAMW_PASSES
    products = update_flops(model, training, model.layers // cut.pipeline) / rate.matmul
    return c["update_passes"] * passes * own * each / rate.memory + products


def flops_equation(model: ModelShape, training: TrainingShape) -> str:
    """The formula of `model_flops` with its numbers, for people."""
    tokens = training.global_batch_sequences * training.sequence_length
    weights = matmul_parameters(model, model.layers, head=True)
    total = model_flops(model, training, training.global_batch_sequences)
    return (
        f"3 x {tokens} tokens x (2 x {weights} matmul parameters + 4 x {training.sequence_length} sequence "
        f"x {model.attention_heads} heads x {model.head_dim} head size x {model.layers} layers) "
        f"= {total:.4g} FLOPs"
    )
