"""From the resolved spec to the planner's inputs: the model's shape, the training's, and the machines'.

Reads nothing but the spec and the catalogue. Whether the machines that it describes exist is the adapter's
business. Called by the CLI, and by the controller before it freezes a revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.api.quantity import accelerator, parse_bytes, parse_quantity
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware import gpus
from trainingrun.planner.hardware.cpu import CPU
from trainingrun.planner.hardware.labels import refuse_name
from trainingrun.planner.hardware.naming import nearest_of
from trainingrun.planner.types import Inventory, ModelShape, NodeShape, TrainingShape
from trainingrun.protocol import families
from trainingrun.protocol.families import FAMILIES

MATMUL_SHARE = 0.6  # of the data sheet's rate, at the shapes of training
LINK_SHARE = 0.8  # of a link's rate, in a ring: 360 of 450 GB/s measured on H200 with 8 accelerators
CONTEXT_BYTES = int(1.5 * gpus.GIB)  # driver, libraries, communicators: 1.3-1.6 GiB measured on V100 and A100

AUTO_SCHEDULE = "1F1B"  # the least memory, and the fewest messages; accelerators may do better

PARAMETER_BYTES = {"BF16": 4, "FP16": 4, "FP32": 4, "FP64": 8}
MOST_SEQUENCES = 1 << 24  # of a global batch
COMPUTE_BYTES = {"BF16": 2, "FP16": 2, "FP32": 4, "FP64": 8}


def planner_inputs(
    spec: Mapping[str, Any], *, accelerator_name: str | None = None
) -> tuple[ModelShape, TrainingShape, Inventory]:
    """What `plan` takes. `accelerator_name` says which accelerator the nodes have (a name of the catalogue),
    which a manifest does not; without accelerators it is ignored. Raises PlanInputError.
    """
    training = training_shape(spec)
    scale = spec["scale"]
    node = node_shape(spec, accelerator_name=accelerator_name)
    return model_shape(spec), training, Inventory(node, scale["minNodes"], scale["maxNodes"])


def model_shape(spec: Mapping[str, Any]) -> ModelShape:
    config = spec["model"]["config"]
    heads, family = config["num_attention_heads"], FAMILIES[config["model_type"]]
    gpt2 = config["model_type"] == "gpt2"
    vocabulary = config.get("vocab_size")
    if vocabulary is None:
        train = (spec["model"].get("tokenizer") or {}).get("train") or {}
        vocabulary = train.get("vocabularySize")
    if vocabulary is None:
        raise PlanInputError(
            "spec.model.config.vocab_size",
            None,
            "the size of the vocabulary is not known: the tokenizer is not trained here",
            "set vocab_size to the size of the tokenizer at spec.model.tokenizer.uri",
        )
    return ModelShape(
        model_type=config["model_type"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        attention_heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=families.head_dim(config),
        vocabulary_size=vocabulary,
        tied_embeddings=families.tied_embeddings(config),
        max_position_embeddings=config["max_position_embeddings"],
        gated=family.gated,
        rotary=family.rotary,
        query_bias=bool(config.get("attention_bias")) or config["model_type"] in ("qwen2", "gpt2"),
        output_bias=bool(config.get("attention_bias")) or gpt2,
        feed_forward_bias=bool(config.get("mlp_bias")) or gpt2,
        norm_bias=gpt2,
        head_norms=config["model_type"] == "qwen3",
        attention_dropout=_drops(config, "attn_pdrop" if gpt2 else "attention_dropout", gpt2),
        hidden_dropout=gpt2 and _drops(config, "resid_pdrop", gpt2),
    )


def _drops(config: Mapping[str, Any], name: str, unless_said: bool) -> bool:
    """transformers' GPT-2 drops a tenth unless it is told not to."""
    return bool(config.get(name, unless_said))


def training_shape(spec: Mapping[str, Any]) -> TrainingShape:
    training = spec["training"]
    batch, length = training["globalBatch"], training["sequenceLength"]
    sequences = batch.get("sequences") or batch["tokens"] // length
    parallelism = spec.get("parallelism") or {}
    block = parallelism.get("deepspeed") or {}
    asked, overrides = parallelism.get("pipelineSchedule"), training.get("overrides") or {}
    if asked == "ZBV" and training["precision"] in ("BF16", "FP16"):
        raise PlanInputError(
            "spec.parallelism.pipelineSchedule",
            asked,
            f"it would add up the gradients of {training['precision']} weights in {training['precision']}, not in FP32",
            "use Auto, 1F1B or Interleaved1F1B, or spec.training.precision FP32",
        )
    if overrides.get("attention") == "Flash":
        raise PlanInputError(
            "spec.training.overrides.attention",
            "Flash",
            "flash-attn computes on accelerators, and this version of the trainer on CPUs",
            "use Auto or Sdpa, torch's own fused attention",
        )
    if sequences > MOST_SEQUENCES:
        raise PlanInputError(
            "spec.training.globalBatch",
            sequences,
            f"a global batch of {sequences} sequences is more than {MOST_SEQUENCES}",
            f"use at most {MOST_SEQUENCES * length} tokens",
        )
    return TrainingShape(
        sequence_length=length,
        global_batch_sequences=sequences,
        parameter_bytes=PARAMETER_BYTES[training["precision"]],
        compute_bytes=COMPUTE_BYTES[training["precision"]],
        optimizer=training["optimizer"]["name"],
        averaged=overrides.get("emaDecay") is not None,
        z_loss=bool(overrides.get("zLoss")),
        eager=overrides.get("attention") == "Eager",
        activation_checkpointing=parallelism.get("activationCheckpointing") or "None",
        pinned=_pinned(spec),
        schedule=AUTO_SCHEDULE if asked in (None, "Auto") else asked,
        any_schedule=asked in (None, "Auto"),
        sequence_parallel=bool(parallelism.get("sequenceParallel")),
        engine=parallelism.get("engine") or "Native",
        zero_stage=block.get("zeroStage"),
        offload=block.get("offload") or "None",
        memory_copies=_memory_copies(spec),
    )


def _memory_copies(spec: Mapping[str, Any]) -> int:
    """Without snapshots in memory there is nothing to keep for others."""
    memory = (spec.get("checkpoint") or {}).get("memory") or {}
    return 1 if memory.get("intervalSteps") == 0 else int(memory.get("copies", 1))


def _pinned(spec: Mapping[str, Any]) -> dict[str, int]:
    """Degrees that the spec gives, and those that it leaves no choice about."""
    axes = (spec.get("parallelism") or {}).get("axes") or {}
    pinned = {axis: degree for axis, degree in axes.items() if degree is not None}
    overrides = spec["training"].get("overrides") or {}
    if overrides.get("attention") == "Eager" and pinned.get("context", 1) > 1:
        raise PlanInputError(
            "spec.training.overrides.attention",
            "Eager",
            f"context {pinned['context']} gathers keys and values for Sdpa",
            "use Sdpa, or set spec.parallelism.axes.context to 1",
        )
    if not overrides.get("compile"):
        return pinned
    for axis in ("tensor", "pipeline", "context"):
        if pinned.get(axis, 1) > 1:
            raise PlanInputError(
                f"spec.parallelism.axes.{axis}",
                pinned[axis],
                "layers that talk to other ranks are not compiled",
                "set it to 1, or remove spec.training.overrides.compile",
            )
    return pinned | {"tensor": 1, "pipeline": 1}


def node_shape(spec: Mapping[str, Any], *, accelerator_name: str | None = None) -> NodeShape:
    resources = spec["resources"]
    per_node = resources["perNode"]
    precision = spec["training"]["precision"]
    asked = accelerator(per_node)
    if asked is None:
        processes = resources.get("processesPerNode") or 1
        return cpu_node(
            processes, parse_quantity(per_node["cpu"]), parse_bytes(per_node["memory"]), precision
        )
    name, count = asked
    entry = _accelerator(name, count, accelerator_name)
    return accelerator_node(
        entry,
        count,
        cores=parse_quantity(per_node["cpu"]),
        host_memory_bytes=parse_bytes(per_node["memory"]),
        precision=precision,
    )


def cpu_node(processes: int, cores: float, memory_bytes: int, precision: str = "FP32") -> NodeShape:
    """A node that trains on its cores, which its processes share evenly."""
    rate = CPU.fp64_flops_per_core if precision == "FP64" else CPU.fp32_flops_per_core
    return NodeShape(
        processes=processes,
        memory_bytes=memory_bytes,
        cores=cores,
        device="cpu",
        flops_per_second=rate * cores / processes,
        link_bytes_per_second=CPU.link_bytes_per_second,
        local_link_bytes_per_second=CPU.local_link_bytes_per_second,
        reserved_bytes_per_process=CPU.process_bytes + CPU.node_bytes // processes,
        memory_bytes_per_second=CPU.memory_bytes_per_second,
        name="cpu",
    )


def accelerator_node(
    entry: gpus.Gpu, count: int, *, cores: float, host_memory_bytes: int, precision: str = "FP32"
) -> NodeShape:
    """A node of `count` accelerators, one process for each. `host_memory_bytes` 0: not stated, not
    checked.
    """
    rates = {"FP32": entry.fp32_flops, "FP64": entry.fp64_flops}
    rate = rates.get(precision, entry.bf16_flops)
    return NodeShape(
        processes=count,
        memory_bytes=int(entry.memory_gib * gpus.GIB) * count,
        cores=cores,
        device=entry.resource,
        flops_per_second=rate * MATMUL_SHARE,
        link_bytes_per_second=entry.link_bytes_per_second * count * LINK_SHARE,
        local_link_bytes_per_second=entry.local_link_bytes_per_second * LINK_SHARE,
        reserved_bytes_per_process=CONTEXT_BYTES,
        host_memory_bytes=host_memory_bytes,
        memory_bytes_per_second=entry.memory_bytes_per_second,
        name=entry.name,
    )


def _accelerator(resource: str, count: int, name: str | None) -> gpus.Gpu:
    path = f"spec.resources.perNode[{resource}]"
    known = gpus.named(resource)
    if not known:
        raise PlanInputError(
            path,
            count,
            f"{resource} is not an accelerator that the planner knows",
            f"use one of: {', '.join(gpus.resources())}",
        )
    if name is None:
        raise PlanInputError(
            path,
            count,
            f"{resource} does not say which accelerator the nodes have, and there is no cluster to ask",
            f"name it with --accelerator, one of: {', '.join(known)}",
        )
    refuse_name(name, path)
    entry = gpus.find(name)
    if entry is None or entry.resource != resource:
        raise PlanInputError(
            path,
            name,
            f"{name} is not an accelerator that the planner knows as {resource}; "
            f"nearest: {', '.join(nearest_of(name, known))}",
            f"use one of: {', '.join(known)}",
        )
    return entry
