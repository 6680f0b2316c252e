"""The model of a row, and the formats that it is trained in: what the columns say over what names stand for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from benchmarks.planner_accuracy import architectures
from benchmarks.planner_accuracy.cells import Row, RowError, number, whole
from benchmarks.planner_accuracy.megatron import MegatronTest, megatron_test
from benchmarks.planner_accuracy.sources import Source
from trainingrun.planner.cost.types import Numerics
from trainingrun.planner.types import ModelShape

# Beyond these a number is a slip.
_MOST = {"layers": 10_000, "hidden": 10**6, "heads": 10**5, "kv_heads": 10**5, "ffn": 10**7, "vocab": 10**8}


def test_of(row: Row) -> MegatronTest:
    layers, hidden, heads = whole(row, "layers"), whole(row, "hidden"), whole(row, "heads")
    if not layers or not hidden or not heads:
        raise RowError(f"test {row['model']!r} gives no layers, hidden or heads")
    return megatron_test(row["model"], heads, hidden, layers)


def model_of(row: Row, test: MegatronTest | None, assumed: list[str]) -> ModelShape:
    given: dict[str, Any] = dict(test.model) if test is not None else {}
    for column, field in (
        ("layers", "layers"),
        ("hidden", "hidden_size"),
        ("heads", "attention_heads"),
        ("kv_heads", "key_value_heads"),
        ("ffn", "intermediate_size"),
        ("vocab", "vocabulary_size"),
    ):
        value = whole(row, column)
        if value:
            if value > _MOST[column]:
                raise RowError(
                    f"{column} {value} is more than the {_MOST[column]} of any model; mend the number"
                )
            given[field] = value
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
    if test is not None and test.model.get("experts") and whole(row, "ffn"):
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
    billions = number(row, "params_b")
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


def numerics_of(row: Row, source: Source, adapter: str, model: ModelShape) -> Numerics:
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
