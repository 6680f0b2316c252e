"""A native plan as the cost model knows it: a `Machine` of a node, and a `Workload` of one copy of a cut.

`planner.cost` is the one model of time, for our engine as for those whose published measurements calibrate it. What
it cannot know is ours alone, and stays in `planner.time` and `planner.memory`, on top: the order of ranks (replicate
slowest), FSDP2's gathers, snapshots, kinds of optimizers. Pure; called for every candidate, so all is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from trainingrun.planner.cost import activations, fitted
from trainingrun.planner.cost.cpu_times import CPU_TIMES
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.rates import CPU
from trainingrun.planner.cost.types import (
    Framework,
    Layout,
    Link,
    Machine,
    Numerics,
    Recompute,
    Sharding,
    Workload,
)
from trainingrun.planner.hardware import gpus
from trainingrun.planner.hardware.links import faster
from trainingrun.planner.hardware.machine import machine as catalogue_machine
from trainingrun.planner.inputs import LINK_SHARE
from trainingrun.planner.layout import Cut
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape
from trainingrun.protocol.records import STAGES_PER_RANK

FRAMEWORK = "native"
_FORMATS = {2: "bf16", 4: "fp32", 8: "fp64"}
_HOP_SECONDS = 50e-6  # between processes of a node without accelerators; twice that between nodes
_HALF_SIZE_BYTES = 1e5  # of a message of gloo
_UNKNOWN_SHARE = 0.6  # what `NodeShape.flops_per_second` is of a data sheet's rate


@lru_cache(maxsize=256)
def machine_of(node: NodeShape) -> Machine:
    """Accelerators come from the catalogue, where it has them; the processes of a CPU node share its network."""
    processes = node.processes
    gpu = gpus.find(node.name)
    if node.device != CPU and gpu is not None:
        known = catalogue_machine(node.name, processes)
        usual = gpu.link_bytes_per_second * processes * LINK_SHARE  # of `inputs.accelerator_node`
        return replace(
            known,
            # The catalogue has no rate of FP64; a plan for it has it in the node's.
            peak_flops={"fp64": node.flops_per_second / _UNKNOWN_SHARE, **known.peak_flops},
            between=faster(known.between, node.link_bytes_per_second / usual),
        )
    rate = node.flops_per_second / (1.0 if node.device == CPU else _UNKNOWN_SHARE)
    return Machine(
        name=CPU if node.device == CPU else node.name or node.device,
        accelerators=processes,
        memory_bytes=node.memory_bytes // processes,
        memory_bytes_per_second=node.memory_bytes_per_second,
        peak_flops=dict.fromkeys(("fp64", "fp32", "bf16", "fp16"), rate),
        measured_flops={},
        inside=Link(node.local_link_bytes_per_second, _HOP_SECONDS, _HALF_SIZE_BYTES),
        between=Link(node.link_bytes_per_second / processes, 2 * _HOP_SECONDS, _HALF_SIZE_BYTES),
    )


def coefficients(machine: Machine) -> Mapping[str, float]:
    """Those of time, as `planner.cost.time` takes them."""
    return CPU_TIMES if machine.name == CPU else fitted.FRAMEWORKS.get(FRAMEWORK, fitted.COMMON)


@lru_cache(maxsize=4)
def framework_of(eager: bool, mixed: bool) -> Framework:
    found = framework(FRAMEWORK if mixed else f"{FRAMEWORK}-fp32")
    return replace(found, flash_attention=False) if eager else found


_COEFFICIENTS = framework(FRAMEWORK).coefficients
LOGIT_COPIES = int(_COEFFICIENTS["memory_logit_copies"])
WHOLE_LOGIT_COPIES = int(_COEFFICIENTS["memory_whole_logit_copies"])


def kept_elements(model: ModelShape, training: TrainingShape, tensor: int) -> int:
    """Elements that one layer keeps for its backward pass, per token, with fused attention."""
    own, size = framework_of(False, training.mixed), float(training.activation_bytes)
    found = activations.kept(
        model,
        activations.frozen(own),
        size,
        tensor,
        training.context,
        1,
        1,
        training.sequence_length,
        training.sequence_parallel,
        False,
        True,
        Recompute.NONE,
    )
    return round(found.dense / size)


@lru_cache(maxsize=16)
def numerics_of(parameter_bytes: int, activation_bytes: int) -> Numerics:
    return Numerics(
        compute=_FORMATS[activation_bytes],
        weights=activation_bytes,
        master=parameter_bytes if activation_bytes != parameter_bytes else 0,
        gradients=parameter_bytes,
        moments=2 * parameter_bytes,
        activations=activation_bytes,
    )


def workload_of(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    micro_batch: int,
    accumulation: int,
    recompute: Recompute = Recompute.NONE,
) -> Workload:
    """One data rank of one copy. What data ranks and stages send each other depends on the order of ranks, which is
    `planner.time`'s to know.
    """
    return Workload(
        model=model,
        sequence_length=training.sequence_length,
        global_batch=training.global_batch_sequences,
        numerics=numerics_of(training.parameter_bytes, training.activation_bytes),
        layout=Layout(
            tensor=cut.tensor,
            pipeline=cut.pipeline,
            context=cut.context,
            virtual=STAGES_PER_RANK[cut.schedule] if cut.pipeline > 1 else 1,
            schedule=cut.schedule,
            sharding=Sharding.WEIGHTS if gathers_layers(cut) else Sharding.NONE,
            micro_batch=micro_batch,
            accumulation=accumulation,
            sequence_parallel=training.sequence_parallel,
            recompute=recompute,
        ),
        machine=machine_of(node),
        framework=framework_of(training.eager, training.mixed),
    )


def gathers_layers(cut: Cut) -> bool:
    """For each pass through them; the stages of a pipeline stay gathered for a whole step."""
    return cut.zero == 3 or (cut.shard > 1 and cut.pipeline == 1 and not cut.zero)
