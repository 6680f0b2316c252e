"""A row of a table of measurements becomes a `Workload`. Reads what was configured, never what came out.

Columns that are empty are filled from names (`architectures`, `megatron`), from the source's habits (`sources`) or
from the other columns; what was filled in by assumption is listed in `Workload.assumed`. A row that does not say
enough raises RowError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.planner_accuracy import architectures
from benchmarks.planner_accuracy.megatron import MegatronTest, megatron_test, stage_layers
from benchmarks.planner_accuracy.sources import Source, source_of
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.types import Layout, Numerics, Recompute, Sharding, Workload
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.machine import machine
from trainingrun.planner.types import ModelShape

OUTCOMES = (
    "tflops_per_gpu",
    "mfu_pct",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "peak_mem_gb",
    "oom",
    "notes",
    "quality",
)
Row = Mapping[str, str]


class RowError(ValueError):
    """A row that cannot be costed, with the reason."""


@dataclass(frozen=True)
class Reading:
    """`workload`, and what the source means by its figures."""

    workload: Workload
    source: Source
    adapter: str = ""  # "", "LoRA", "QLoRA", "Adapter", "SFT"

    @property
    def complete(self) -> bool:
        return not self.workload.assumed

    @property
    def timed(self) -> Workload:
        """What its times are of: sequences of the usual length."""
        if self.source.length == 1.0:
            return self.workload
        length = max(1, round(self.workload.sequence_length * self.source.length))
        return replace(self.workload, sequence_length=length)


def read_row(row: Row) -> Reading:
    """Raises RowError."""
    row = {key: (value or "").strip() for key, value in row.items() if key not in OUTCOMES}
    source, known = source_of(row.get("source", ""))
    if source.refused:
        raise RowError(source.refused)
    assumed = [] if known else ["source"]
    if "dist-opt" in row.get("zero_stage_or_fsdp", "") and source.framework == "transformers":
        source = replace(source, framework="megatron-2023", gradient_bytes=4, dropout=True)
    test = _test(row) if source.framework == "megatron" and "ci" in row.get("source", "").lower() else None
    model = _model(row, test, assumed)
    sequence = _whole(row, "seq_len")
    if sequence is None:
        sequence = source.sequence
        assumed.append("seq_len")
    if source.recompute == "with sequence parallelism":
        model = replace(model, rotary=True)  # its positions are rotated, or longer sequences had not fitted
    elif not model.rotary and model.max_position_embeddings < sequence:
        model = replace(model, max_position_embeddings=sequence)
    adapter = _adapter(row["model"])
    numerics = _numerics(row, source, adapter, model)
    layout, batch = _layout(row, source, model, test, assumed)
    kind = framework(source.framework, source.spends)
    if test is not None:
        kind = test.framework(kind)
        if row["model"].endswith("_1node"):
            kind = replace(kind, times="megatron-one-node")
    elif "_cef" in row.get("source_ref", ""):  # cross-entropy fusion, in Megatron's own way
        own = {"memory_fused_logit": 6.0, "memory_head_gradient": 2.0}
        kind = replace(kind, fused_loss=True, coefficients=kind.coefficients | own)
    elif source.framework == "megatron-deepspeed" and row.get("seq_parallel") == "yes":
        kind = replace(kind, flash_attention=True)
    try:
        where = machine(_gpu(row), _whole(row, "gpus_per_node") or None, row.get("interconnect", ""))
    except PlanInputError as error:
        raise RowError(str(error)) from error
    if "?" in row.get("gpu", "") or not _gpu(row):
        assumed.append("gpu")
    workload = Workload(
        model=model,
        sequence_length=sequence,
        global_batch=batch,
        numerics=numerics,
        layout=layout,
        machine=where,
        framework=kind,
        dropout=test.dropout if test is not None else source.dropout,
        assumed=tuple(assumed),
    )
    return Reading(workload, source, adapter)


def _number(row: Row, column: str) -> float | None:
    found = re.match(r"\d+(\.\d+)?", row.get(column, ""))
    return float(found[0]) if found else None


def _whole(row: Row, column: str) -> int | None:
    number = _number(row, column)
    return None if number is None else int(number)


def _gpu(row: Row) -> str:
    name = row.get("gpu", "").split("?")[0].strip()
    return "A100-SXM-80GB" if not name or "not stated" in name else name


def _adapter(name: str) -> str:
    plain = name.lower()
    if "qlora" in plain or ("lora" in plain and "quant=bnb" in plain):
        return "QLoRA"
    for word in ("lora", "adapter", "sft"):
        if re.search(rf"\b{word}\b", plain):
            if word == "adapter" and "quant=bnb" in plain:
                return "QAdapter"
            return {"lora": "LoRA", "adapter": "Adapter", "sft": "SFT"}[word]
    return ""


def _test(row: Row) -> MegatronTest:
    layers, hidden, heads = _whole(row, "layers"), _whole(row, "hidden"), _whole(row, "heads")
    if not layers or not hidden or not heads:
        raise RowError(f"test {row['model']!r} gives no layers, hidden or heads")
    return megatron_test(row["model"], heads, hidden, layers)


def _model(row: Row, test: MegatronTest | None, assumed: list[str]) -> ModelShape:
    given: dict[str, Any] = dict(test.model) if test is not None else {}
    for column, field in (
        ("layers", "layers"),
        ("hidden", "hidden_size"),
        ("heads", "attention_heads"),
        ("kv_heads", "key_value_heads"),
        ("ffn", "intermediate_size"),
        ("vocab", "vocabulary_size"),
    ):
        number = _whole(row, column)
        if number:
            given[field] = number
    known = architectures.published(row["model"]) or {}
    if (
        test is None
        and known.get("experts") is not None
        and known["experts"].intermediate_size != known["intermediate_size"]
    ):
        given.pop("intermediate_size", None)  # rows give that of dense layers or of experts
    if {"hidden_size", "attention_heads"} & given.keys() and "head_dim" not in given:
        hidden = given.get("hidden_size", known.get("hidden_size"))
        heads = given.get("attention_heads", known.get("attention_heads"))
        same = hidden == known.get("hidden_size") and heads == known.get("attention_heads")
        if hidden and heads and not (same and "head_dim" in known):
            given["head_dim"] = hidden // heads
    _sizes_from_parameters(row, known, given, assumed)
    if test is not None and test.model.get("experts") and _whole(row, "ffn"):
        experts = test.model["experts"]
        if "moe-ffn-hidden-size" not in test.arguments:
            given["experts"] = replace(experts, intermediate_size=given["intermediate_size"])
    try:
        if test is None:
            shape, guessed = architectures.shape(row["model"], given)
        else:
            given.setdefault("key_value_heads", given["attention_heads"])
            given.setdefault("head_dim", given["hidden_size"] // given["attention_heads"])
            shape, guessed = ModelShape(**given), ()
    except ValueError as error:
        raise RowError(str(error)) from error
    assumed.extend(guessed)
    return shape


def _sizes_from_parameters(
    row: Row, known: dict[str, Any], given: dict[str, Any], assumed: list[str]
) -> None:
    """A GPT of which only the number of parameters is stated, as people lay them out: 12 h^2 for each layer."""
    billions = _number(row, "params_b")
    if billions is None:
        found = re.search(r"(\d+(\.\d+)?)\s*b\b", row["model"].lower())
        billions = float(found[1]) if found else None
    if "long-seq support" in row.get("source", "").lower():
        billions = 30.0  # the larger of the two that its page names
    if billions is None or (given.get("layers") or known.get("layers")):
        return
    hidden = given.get("hidden_size") or known.get("hidden_size")
    if not hidden:
        hidden = next((h for limit, h in _WIDTHS if billions <= limit), 12288)
        given["hidden_size"] = hidden
        assumed.append("hidden")
    vocabulary = given.get("vocabulary_size") or known.get("vocabulary_size") or 50257
    given["layers"] = max(1, round((billions * 1e9 - vocabulary * hidden) / (12 * hidden * hidden)))
    assumed.append("layers")


# Parameters (billions) up to which a GPT has this width.
_WIDTHS = ((0.5, 1024), (2.0, 2048), (4.5, 3072), (9.0, 4096), (30.0, 6144), (60.0, 8192), (120.0, 10240))


def _numerics(row: Row, source: Source, adapter: str, model: ModelShape) -> Numerics:
    name = (row.get("precision") or source.precision).lower()
    if "nvfp4" in name:
        compute = "nvfp4"
    elif "mx" in name:
        compute = "mxfp8"
    elif "fp8" in name or "fine-grained" in name:
        compute = "fp8"
    elif "bf16" in name and "fp16/" not in name:
        compute = "bf16"
    elif "fp16" in name:
        compute = "fp16"
    elif "fp32" in name:
        compute = "fp32"
    else:
        compute = source.precision
    gradients = source.gradient_bytes
    if "fp32 grad accum" in name:
        gradients = 6  # each micro-batch's in half precision, and their sum
    numerics = Numerics(compute, 2, 4, gradients, 8, 2)
    if compute == "fp32":
        numerics = Numerics("fp32", 4, 0, 4, 8, 4)
    if source.framework in ("litgpt", "torchtune", "fms-fsdp", "automodel"):
        numerics = replace(numerics, master=0, moments=4)  # all in bfloat16
    name_of_model = row["model"].lower()
    if "8bit" in name_of_model:
        numerics = replace(numerics, master=0, moments=2)
    if "opt-in-bwd" in name_of_model or "fused opt" in name_of_model:
        numerics = replace(numerics, gradients=0)  # each is used as soon as it is there
    if source.framework == "llm-foundry" and name.startswith("amp"):
        numerics = replace(numerics, weights=4, master=0)
    if adapter in ("LoRA", "QLoRA", "Adapter", "QAdapter"):
        numerics = replace(numerics, adapters=_adapters(model, adapter))
        if adapter.startswith("Q"):
            numerics = replace(numerics, weights=0.55 if "nf4-dq" not in row["model"] else 0.505)
    return numerics


def _adapters(model: ModelShape, adapter: str) -> int:
    """Trained parameters of adapters as the tables have them: rank 8 on queries and values."""
    if "Adapter" in adapter:
        return 30 * 10 * model.hidden_size + 30 * model.attention_heads
    keys = model.key_value_heads * model.head_dim
    return model.layers * 8 * (3 * model.hidden_size + keys)


def _layout(
    row: Row, source: Source, model: ModelShape, test: MegatronTest | None, assumed: list[str]
) -> tuple[Layout, int]:
    """And the global batch in sequences."""
    pipeline, context = _whole(row, "pp") or 1, _whole(row, "cp") or 1
    gpus = _whole(row, "gpus")
    if gpus is None:
        gpus = 8
        if test is None:
            assumed.append("gpus")
    data = _whole(row, "dp")
    tensor = _whole(row, "tp")
    if tensor is None:
        tensor = max(1, gpus // (pipeline * context * (data or 1)))
        assumed.append("tp")
    data = max(1, gpus // (tensor * pipeline * context))
    batch, micro, accumulation = _batch(row, source, data, assumed)
    if (data * micro * accumulation) != batch:
        accumulation = max(1, -(-batch // (data * micro)))
    expert = _whole(row, "ep") or 1
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
    virtual = _whole(row, "vpp") or 1
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
    batch, micro, steps = _whole(row, "global_batch"), _whole(row, "micro_batch"), _whole(row, "grad_accum")
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
        return (Sharding.WEIGHTS if (_whole(row, "pp") or 1) == 1 else Sharding.OPTIMIZER), group
    if "zero3" in text or "sdp" in text:
        if "grad_op" in text or "zero2" in text:
            return Sharding.GRADIENTS, group
        if "hsdp" in text:  # shared in a node, copied among nodes
            group = min(everybody, _whole(row, "gpus_per_node") or 8)
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
            small = (_whole(row, "gpus") or 1) > 1 or any(size in _gpu(row) for size in ("24GB", "16GB"))
            text = "full" if small else "none"
        assumed.append("recompute")
    if text.startswith("full"):
        return Recompute.FULL
    return Recompute.SELECTIVE if text.startswith("selective") else Recompute.NONE
