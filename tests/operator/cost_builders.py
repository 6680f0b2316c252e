"""Workloads of the cost model for tests: `a_workload(tensor=4, recompute=Recompute.FULL)`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.types import Layout, Numerics, Workload
from trainingrun.planner.hardware.machine import machine
from trainingrun.planner.types import Experts, ModelShape

LLAMA_70B = ModelShape(
    model_type="llama", hidden_size=8192, intermediate_size=28672, layers=80, attention_heads=64, key_value_heads=8,
    head_dim=128, vocabulary_size=128256, tied_embeddings=False, max_position_embeddings=8192,
)  # fmt: skip
LLAMA_8B = replace(
    LLAMA_70B, hidden_size=4096, intermediate_size=14336, layers=32, attention_heads=32, head_dim=128
)
GPT_22B = ModelShape(
    model_type="gpt", hidden_size=6144, intermediate_size=24576, layers=48, attention_heads=64, key_value_heads=64,
    head_dim=96, vocabulary_size=51200, tied_embeddings=True, max_position_embeddings=2048, gated=False, rotary=False,
    query_bias=True, output_bias=True, feed_forward_bias=True, norm_bias=True,
)  # fmt: skip
MIXTRAL = replace(LLAMA_8B, model_type="mixtral", vocabulary_size=32000, experts=Experts(8, 2, 14336))

_LAYOUT = {field.name for field in fields(Layout)}


def a_workload(model: ModelShape = LLAMA_8B, **given: Any) -> Workload:
    """Megatron on H100 unless told otherwise. Fields of `Layout` and of `Workload` by name; `gpu` and `kind` too."""
    layout = {name: given.pop(name) for name in list(given) if name in _LAYOUT}
    gpu, kind = given.pop("gpu", "H100-SXM-80GB"), given.pop("kind", "megatron")
    cut = Layout(**layout)
    work = Workload(
        model=model,
        sequence_length=4096,
        global_batch=cut.data * cut.micro_batch * cut.accumulation,
        numerics=Numerics("bf16"),
        layout=cut,
        machine=machine(gpu, 8),
        framework=framework(kind),
    )
    return replace(work, **given)
