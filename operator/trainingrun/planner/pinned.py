"""A configuration that a user gives, completed and checked: how it would be cut, and why it cannot be.

What is not given is taken from the planner's own choice for that size, or follows from the rest. Nothing is
rounded in silence: a product that does not come out is refused with the whole equation and the nearest
degree that makes it true. Whether it fits in memory is no question of this module: `weighing` says so, and an
answer of "no, by 12 GiB" is a good one. Pure; called by the CLI and by `nearby`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainingrun.planner import rules
from trainingrun.planner.candidates import split
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.layout import Cut, state_copies
from trainingrun.planner.types import ModelShape, TrainingShape
from trainingrun.protocol.records import STAGES_PER_RANK, Rung

MODES = ("None", "Selective", "Full")
AXES = ("tensor", "context", "shard", "replicate", "pipeline")  # fastest first, as ranks are ordered


@dataclass(frozen=True)
class Given:
    """What the user pinned; None: not given."""

    tensor: int | None = None
    context: int | None = None
    shard: int | None = None
    replicate: int | None = None
    pipeline: int | None = None
    micro_batch: int | None = None
    recompute: str | None = None  # of MODES
    schedule: str | None = None  # of STAGES_PER_RANK
    sequence_parallel: bool | None = None
    zero_stage: int | None = None  # of the engine DeepSpeed

    @property
    def nothing(self) -> bool:
        return self == Given()


def completed(
    model: ModelShape, training: TrainingShape, given: Given, chosen: Rung, processes: int
) -> tuple[TrainingShape, Rung]:
    """The training and the rung that `given` means on `chosen.nodes` nodes; `chosen` is the planner's own rung
    for that size. Raises PlanInputError, and NothingFits where a node's processes do not do.
    """
    _check(given)
    if chosen.zero_stage:
        return _of_zero(training, given, chosen)
    if given.zero_stage is not None:
        raise PlanInputError(
            _flag("zero_stage"),
            given.zero_stage,
            "stages of ZeRO are of the engine DeepSpeed, and this run has the engine Native",
            "use --shard, or set spec.parallelism.engine to DeepSpeed",
        )
    context = given.context or chosen.context
    pipeline = given.pipeline or chosen.pipeline
    training = replace(
        training,
        schedule=_schedule(model, training, given, chosen, pipeline),
        pinned={**training.pinned, "context": context},
        sequence_parallel=_either(given.sequence_parallel, training.sequence_parallel),
        activation_checkpointing=given.recompute or chosen.activation_checkpointing,
    )
    tensor = given.tensor or chosen.tensor
    _check_model(model, training, processes, tensor, pipeline, context)
    degrees = rules.pipeline_degrees(model, training)
    shard, replicate = _data(given, chosen, processes, tensor * context, pipeline, degrees)
    cut = Cut(pipeline, shard, tensor, context, training.schedule if pipeline > 1 else "1F1B")
    micro_batch = given.micro_batch or _usual_micro_batch(training, cut, replicate, chosen)
    batch = split(training, cut, replicate, micro_batch=micro_batch)
    if batch is None:
        raise _batch_error(training, cut, replicate, micro_batch)
    return training, replace(
        chosen,
        pipeline=pipeline,
        replicate=replicate,
        shard=shard,
        tensor=tensor,
        context=context,
        micro_batch=micro_batch,
        accumulation=batch.accumulation,
        padding_sequences=batch.padding,
        state_copies=state_copies(cut, replicate, processes),
        useful=True,
        reason="",
        activation_checkpointing=training.activation_checkpointing,
        sequence_parallel=training.sequence_parallel and tensor > 1,
        schedule=cut.schedule,
    )


def plain_rung(training: TrainingShape, nodes: int, processes: int) -> Rung:
    """Data ranks only, sharded inside a node: what is completed from where the planner has nothing of its own."""
    deepspeed, mode = training.engine == "DeepSpeed", training.activation_checkpointing
    return Rung(
        nodes=nodes,
        processes_per_node=processes,
        pipeline=training.pinned.get("pipeline", 1),
        replicate=1 if deepspeed else nodes,
        shard=nodes * processes if deepspeed else processes,
        tensor=training.pinned.get("tensor", 1),
        micro_batch=1,
        accumulation=1,
        padding_sequences=0,
        state_copies=1,
        activation_checkpointing="None" if mode == "Auto" else mode,
        context=training.context,
        schedule=training.schedule,
        engine=training.engine,
        zero_stage=(training.zero_stage or 3) if deepspeed else 0,
    )


def _check(given: Given) -> None:
    for name in (*AXES, "micro_batch"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise PlanInputError(_flag(name), value, f"{value} is no degree", "use 1 or more")
    if given.zero_stage not in (None, 1, 2, 3):
        raise PlanInputError(
            _flag("zero_stage"), given.zero_stage, "ZeRO has the stages 1, 2 and 3", "use one of them"
        )
    for name, known in (("recompute", MODES), ("schedule", tuple(STAGES_PER_RANK))):
        value = getattr(given, name)
        if value is not None and value not in known:
            meant = [one for one in known if one.casefold() == value.casefold()]
            fix = f"use {meant[0]}" if meant else "use one of them"
            raise PlanInputError(_flag(name), value, f"{value} is not one of: {', '.join(known)}", fix)


def _schedule(model: ModelShape, training: TrainingShape, given: Given, chosen: Rung, pipeline: int) -> str:
    """The planner's own, as long as its stages come out; where the user left the choice, the plain one else."""
    if given.schedule == "ZBV" and training.mixed:
        raise PlanInputError(
            _flag("schedule"), "ZBV", "ZBV would add up gradients in half precision", "use Interleaved1F1B"
        )
    if given.schedule is not None:
        return given.schedule
    usual = chosen.schedule if chosen.pipeline > 1 else training.schedule
    uneven = model.layers % (pipeline * STAGES_PER_RANK[usual])
    return "1F1B" if uneven and training.any_schedule else usual


def _of_zero(training: TrainingShape, given: Given, chosen: Rung) -> tuple[TrainingShape, Rung]:
    """All ranks share one copy of the state: only the stage, the micro-batch and what is computed twice are free."""
    for name in (*AXES, "schedule", "sequence_parallel"):
        if getattr(given, name) is not None:
            raise PlanInputError(
                _flag(name),
                getattr(given, name),
                f"the engine DeepSpeed has data ranks only: shard {chosen.shard}",
                "use --zero-stage, --micro-batch or --recompute, or the engine Native",
            )
    stage = given.zero_stage or chosen.zero_stage
    cut = Cut(1, chosen.shard, 1, zero=stage)
    micro_batch = given.micro_batch or chosen.micro_batch
    training = replace(training, activation_checkpointing=given.recompute or chosen.activation_checkpointing)
    batch = split(training, cut, 1, micro_batch=micro_batch)
    if batch is None:
        raise _batch_error(training, cut, 1, micro_batch)
    return training, replace(
        chosen,
        zero_stage=stage,
        micro_batch=micro_batch,
        accumulation=batch.accumulation,
        padding_sequences=batch.padding,
        activation_checkpointing=training.activation_checkpointing,
        useful=True,
        reason="",
    )


def _check_model(
    model: ModelShape, training: TrainingShape, processes: int, tensor: int, pipeline: int, context: int
) -> None:
    if processes % context or training.sequence_length % context:
        both = math.gcd(processes, training.sequence_length)
        near = rules.nearest(context, rules.divisors(both))
        raise PlanInputError(
            _flag("context"),
            context,
            f"context {context} does not divide both {training.sequence_length} tokens and the {processes} "
            f"processes of a node; nearest that fits: {near}",
            f"use --context {near}",
        )
    why = rules.refusal(model, training, processes, tensor=tensor, pipeline=pipeline)
    if why:
        axis = "pipeline" if why.startswith("pipeline") else "tensor"
        value = {"tensor": tensor, "pipeline": pipeline}[axis]
        allowed = (
            rules.pipeline_degrees(model, training)
            if axis == "pipeline"
            else rules.tensor_degrees(model, training, processes // context)
        )
        raise PlanInputError(_flag(axis), value, why, f"use {_flag(axis)} {rules.nearest(value, allowed)}")


def _data(
    given: Given, chosen: Rung, processes: int, inner: int, pipeline: int, degrees: list[int]
) -> tuple[int, int]:
    """(shard, replicate) of all processes. `inner`: tensor x context; `degrees`: of pipelines that the model allows."""
    world = chosen.nodes * processes
    data, rest = divmod(world, inner * pipeline)
    tensor, context = given.tensor or chosen.tensor, given.context or chosen.context
    if rest or not data:
        allowed = [one for one in degrees if world % (inner * one) == 0]
        near = rules.nearest(pipeline, allowed or [1])
        nearest = f"; nearest that fits: pipeline {near}" if allowed else ""
        raise PlanInputError(
            _flag("pipeline"),
            pipeline,
            f"tensor {tensor} x context {context} x pipeline {pipeline} = {inner * pipeline} processes, which do "
            f"not divide {chosen.nodes} nodes x {processes} processes = {world} ({world / inner / pipeline:.2f} "
            f"data ranks){nearest}",
            f"use --pipeline {near}, or other --nodes" if allowed else "use fewer --tensor, or other --nodes",
        )
    shard, replicate = given.shard, given.replicate
    if shard is None and replicate is not None and data % replicate:
        near = rules.nearest(replicate, rules.divisors(data))
        raise PlanInputError(
            _flag("replicate"),
            replicate,
            f"replicate {replicate} does not divide {chosen.nodes} nodes x {processes} processes / (tensor {tensor} "
            f"x context {context} x pipeline {pipeline}) = {data} data ranks ({data / replicate:.2f} shards); nearest "
            f"that fits: replicate {near} x shard {data // near}",
            f"use --replicate {near}",
        )
    if shard is None and replicate is None:
        shard = max(one for one in rules.divisors(data) if one <= max(1, chosen.shard))
    shard = shard or (data // (replicate or 1) or 1)
    replicate = replicate or max(1, data // shard)
    if shard * replicate != data:
        near = rules.nearest(shard, rules.divisors(data))
        raise PlanInputError(
            _flag("shard"),
            shard,
            f"shard {shard} x replicate {replicate} = {shard * replicate} data ranks, but {chosen.nodes} nodes x "
            f"{processes} processes / (tensor {tensor} x context {context} x pipeline {pipeline}) = {data}; "
            f"nearest that fits: shard {near} x replicate {data // near}",
            f"use --shard {near} --replicate {data // near}",
        )
    return shard, replicate


def _usual_micro_batch(training: TrainingShape, cut: Cut, replicate: int, chosen: Rung) -> int:
    """The planner's, as far as the batch goes round."""
    share = max(1, training.global_batch_sequences // (replicate * cut.shard * cut.pipeline))
    return min(chosen.micro_batch, share)


def _batch_error(training: TrainingShape, cut: Cut, replicate: int, micro_batch: int) -> PlanInputError:
    data, batch = replicate * cut.shard, training.global_batch_sequences
    rounds = -(-batch // (data * micro_batch))
    if data > batch:
        message = (
            f"shard {cut.shard} x replicate {replicate} = {data} data ranks, but the global batch has {batch} "
            f"sequences; nearest that fits: {batch} data ranks"
        )
        return PlanInputError(
            _flag("replicate"), replicate, message, "use more tensor or pipeline, or fewer nodes"
        )
    most = batch // (data * cut.pipeline)
    near = f"nearest that fits: micro-batch {most}" if most else "no micro-batch is small enough"
    message = (
        f"{batch} sequences / ({data} data ranks x micro-batch {micro_batch}) = {rounds} of them, but a pipeline "
        f"of {cut.pipeline} needs {cut.pipeline} to fill; {near}"
    )
    fix = f"use --micro-batch {most}" if most else "use a shorter pipeline, or fewer nodes"
    return PlanInputError(_flag("micro_batch"), micro_batch, message, fix)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _either(first: bool | None, second: bool) -> bool:
    return second if first is None else first
