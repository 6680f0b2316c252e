"""The families of transformers models of which the planner knows the shape: the table is the list of what is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainingrun.planner.models import dense_families as dense
from trainingrun.planner.models import expert_families as experts

Config = Mapping[str, Any]
Fields = dict[str, Any]

FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "arcee": dense.arcee,
    "bloom": dense.bloom,
    "codegen": dense.gptj,
    "cohere": dense.cohere,
    "cohere2": dense.cohere,
    "deepseek_v2": experts.deepseek,
    "deepseek_v3": experts.deepseek,
    "ernie4_5": dense.ernie4_5,
    "exaone4": lambda config: {**dense.windows(config), "head_norms": True},
    "falcon": dense.falcon,
    "gemma": dense.llama,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "glm": dense.glm,
    "glm4": dense.glm4,
    "glm4_moe": experts.glm4_moe,
    "gpt2": dense.gpt2,
    "gpt_bigcode": dense.gpt_bigcode,
    "gpt_neo": dense.gpt_neo,
    "gpt_neox": dense.gpt_neox,
    "gpt_oss": experts.gpt_oss,
    "gptj": dense.gptj,
    "granite": dense.llama,
    "granitemoe": experts.mixtral,
    "helium": dense.llama,
    "llama": dense.llama,
    "llama4_text": experts.llama4,
    "mistral": dense.llama,
    "mixtral": experts.mixtral,
    "mpt": dense.mpt,
    "nemotron": dense.nemotron,
    "olmo": dense.olmo,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo2,
    "olmoe": experts.olmoe,
    "opt": dense.opt,
    "phi": dense.phi,
    "phi3": dense.llama,
    "phimoe": experts.phimoe,
    "qwen2": dense.qwen2,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3": dense.qwen3,
    "qwen3_moe": experts.qwen3_moe,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.llama,
    "stablelm": dense.stablelm,
    "starcoder2": dense.starcoder2,
}
