"""From a rung of the planner to a configuration of the cost model, which knows frameworks and formats.

What the trainer does with each setting is said here once: which bytes a weight has, what data ranks share,
what is computed twice. Pure; called by `costing`.
"""

from __future__ import annotations

from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.types import Layout, Machine, Numerics, Recompute, Sharding, Workload
from trainingrun.planner.layout import Cut
from trainingrun.planner.optimizer_state import state_bytes
from trainingrun.planner.parameters import stage_parameters
from trainingrun.planner.types import ModelShape, TrainingShape
from trainingrun.protocol.records import STAGES_PER_RANK, Rung

_RECOMPUTE = {"None": Recompute.NONE, "Selective": Recompute.SELECTIVE, "Full": Recompute.FULL}
_ZERO = {1: Sharding.OPTIMIZER, 2: Sharding.GRADIENTS, 3: Sharding.WEIGHTS}
_FRAMEWORKS = {"Native": "native", "DeepSpeed": "deepspeed"}


def workload(model: ModelShape, training: TrainingShape, machine: Machine, rung: Rung) -> Workload:
    """`rung` on nodes of `machine`. The global batch is that of the run, without the padding."""
    cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule, rung.zero_stage)
    return Workload(
        model=model,
        sequence_length=training.sequence_length,
        global_batch=training.global_batch_sequences,
        numerics=numerics(model, training, cut),
        layout=layout(training, rung),
        machine=machine,
        framework=framework(_FRAMEWORKS[rung.engine]),
    )


def numerics(model: ModelShape, training: TrainingShape, cut: Cut) -> Numerics:
    """Formats of the trainer: masters, gradients and moments in single precision beside modules in half."""
    size, small = training.parameter_bytes, training.activation_bytes
    whole = stage_parameters(model, cut.pipeline, 0, cut.tensor, head=cut.head_rank)
    moments = state_bytes(model, training, whole, cut) * cut.shard / max(1, whole.total)
    return Numerics(
        compute="bf16" if training.mixed else "fp32",
        weights=small,
        master=size if training.mixed else 0,
        gradients=size,
        moments=moments + (size if training.averaged else 0),
        activations=small,
    )


def layout(training: TrainingShape, rung: Rung) -> Layout:
    offload = training.offload if rung.engine == "DeepSpeed" else "None"
    sharding = Sharding.WEIGHTS if rung.shard > 1 else Sharding.NONE
    return Layout(
        tensor=rung.tensor,
        pipeline=rung.pipeline,
        context=rung.context,
        data=rung.data,
        virtual=STAGES_PER_RANK[rung.schedule] if rung.pipeline > 1 else 1,
        schedule=rung.schedule,
        sharding=_ZERO.get(rung.zero_stage, sharding),
        shard=rung.shard,
        micro_batch=rung.micro_batch,
        accumulation=rung.accumulation,
        sequence_parallel=rung.sequence_parallel and rung.tensor > 1,
        recompute=_RECOMPUTE[rung.activation_checkpointing],
        offload_optimizer=offload != "None",
        offload_weights=offload == "OptimizerAndParameters",
    )
