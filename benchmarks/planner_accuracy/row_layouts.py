"""How a row cuts its model and its batch: degrees, sharding, stages, micro-batches, recomputation."""

from __future__ import annotations

import math
import re

from benchmarks.planner_accuracy.cells import Row, RowError, gpu_name, whole
from benchmarks.planner_accuracy.megatron import MegatronTest, stage_layers
from benchmarks.planner_accuracy.sources import Source
from trainingrun.planner.cost.types import Layout, Recompute, Sharding
from trainingrun.planner.types import ModelShape

_DEEPEST = 2048  # stages


def layout_of(
    row: Row, source: Source, model: ModelShape, test: MegatronTest | None, assumed: list[str]
) -> tuple[Layout, int]:
    """And the global batch in sequences."""
    pipeline, context = whole(row, "pp") or 1, whole(row, "cp") or 1
    gpus = whole(row, "gpus")
    if gpus is None:
        gpus = 8
        if test is None:
            assumed.append("gpus")
    data = whole(row, "dp")
    tensor = whole(row, "tp")
    if tensor is None:
        tensor = max(1, gpus // (pipeline * context * (data or 1)))
        assumed.append("tp")
    data = max(1, gpus // (tensor * pipeline * context))
    batch, micro, accumulation = _batch(row, source, data, assumed)
    if data > batch and data % batch == 0:  # no data rank is without a sequence: the others share these out
        context, data = context * (data // batch), batch
        assumed.append("cp")
    if (data * micro * accumulation) != batch:
        accumulation = max(1, -(-batch // (data * micro)))
    expert = whole(row, "ep") or 1
    if source.framework == "automodel" and model.experts is not None and expert == 1:
        expert = math.gcd(
            gpus, model.experts.count
        )  # its tables leave a dash where all ranks share out the experts
        assumed.append("ep")
    expert_tensor = tensor
    if test is not None and test.expert_tensor is not None:
        expert_tensor = test.expert_tensor
    elif test is None and model.experts is not None and expert > 1:
        expert_tensor = 1
    virtual = whole(row, "vpp") or 1
    if pipeline * virtual > _DEEPEST:
        raise RowError(f"pp {pipeline} x vpp {virtual} is more stages than {_DEEPEST}; give fewer")
    layers: tuple[int, ...] = ()
    if test is not None:
        layers = stage_layers(test, model.layers, pipeline, virtual)
    elif pipeline > 1 and model.layers % pipeline:
        layers = _uneven(model.layers, pipeline)
    sharding, shard = _sharding(row, data, context)
    if test is not None:
        shard = max(1, shard // int(test.arguments.get("num-distributed-optimizer-instances", 1)))
    text = row.get("zero_stage_or_fsdp", "").lower() + (row["model"].lower() if test is None else "")
    return (
        Layout(
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            data=data,
            expert=expert,
            expert_tensor=expert_tensor,
            virtual=virtual,
            schedule="1F1B" if virtual == 1 else "Interleaved1F1B",
            sharding=sharding,
            shard=shard,
            micro_batch=micro,
            accumulation=accumulation,
            sequence_parallel=row.get("seq_parallel") == "yes" and tensor > 1,
            recompute=_recompute(row, source, assumed),
            offload_optimizer="offload" in text or "paged" in text,
            offload_weights="offload" in text,
            stage_layers=layers,
        ),
        batch,
    )


def _batch(row: Row, source: Source, data: int, assumed: list[str]) -> tuple[int, int, int]:
    """Global batch, micro-batch and accumulation, each from the other two where it is not given."""
    batch, micro, steps = whole(row, "global_batch"), whole(row, "micro_batch"), whole(row, "grad_accum")
    batch = batch or (source.batch if steps is None else None)
    if micro is None:
        if batch is not None and steps is not None:
            micro = max(1, batch // (data * steps))
        else:
            micro = source.micro_batch or max(1, (batch or data) // data)
            assumed.append("micro_batch")
    if batch is None:
        if steps is None:
            steps = 1
            assumed.append("global_batch")
        batch = data * micro * steps
    if steps is None:
        steps = max(1, batch // (data * micro))
    return batch, micro, steps


def _uneven(layers: int, pipeline: int) -> tuple[int, ...]:
    """Embedding and head count as a layer each, where that divides; else the first ranks have one layer more."""
    if (layers + 2) % pipeline == 0:
        each = (layers + 2) // pipeline
        return (each - 1, *([each] * (pipeline - 2)), each - 1)
    each, rest = divmod(layers, pipeline)
    return tuple(each + (1 if rank < rest else 0) for rank in range(pipeline))


def _sharding(row: Row, data: int, context: int) -> tuple[Sharding, int]:
    text = row.get("zero_stage_or_fsdp", "").lower()
    everybody = data * context
    found = re.search(r"\((?:group )?(\d+)\)", text)
    group = min(int(found[1]), everybody) if found else everybody
    if (
        "zero (section)" in text
    ):  # which stage, says only the section: it is what a model needs that is not cut
        return (Sharding.WEIGHTS if (whole(row, "pp") or 1) == 1 else Sharding.OPTIMIZER), group
    if "zero3" in text or "sdp" in text:
        if "grad_op" in text or "zero2" in text:
            return Sharding.GRADIENTS, group
        if "hsdp" in text:  # shared in a node, copied among nodes
            group = min(everybody, whole(row, "gpus_per_node") or 8)
        if "dp(" in text:
            inner = re.search(r"fsdp\((\d+)\)", text)
            group = int(inner[1]) if inner else everybody
        return (Sharding.WEIGHTS, group) if group > 1 else (Sharding.NONE, 1)
    if "zero2" in text:
        return Sharding.GRADIENTS, group
    if "dist-opt" in text or "zero1" in text or (not text and data > 1):
        return Sharding.OPTIMIZER, group
    return Sharding.NONE, 1


def _recompute(row: Row, source: Source, assumed: list[str]) -> Recompute:
    text = row.get("recompute", "").lower().rstrip("?")
    if not text:
        text = source.recompute
        if text == "with sequence parallelism":
            text = "full" if row.get("seq_parallel") == "yes" else "none"
        if text == "least":
            text = "none"  # `predict` tries more
        if text == "where small":  # a table of what fits: one large accelerator needs no recomputation
            small = (whole(row, "gpus") or 1) > 1 or any(size in gpu_name(row) for size in ("24GB", "16GB"))
            text = "full" if small else "none"
        assumed.append("recompute")
    if text.startswith("full"):
        return Recompute.FULL
    return Recompute.SELECTIVE if text.startswith("selective") else Recompute.NONE
