"""Published architectures by the names that tables of measurements use. What a row says itself comes first.

Sizes are those of the models' own configurations; nothing here is measured.
"""

from __future__ import annotations

import re
from typing import Any

from trainingrun.planner.types import Experts, Hybrid, LatentAttention, ModelShape

GPT: dict[str, Any] = {
    "model_type": "gpt",
    "gated": False,
    "rotary": False,
    "query_bias": True,
    "output_bias": True,
    "feed_forward_bias": True,
    "norm_bias": True,
    "tied_embeddings": True,
}
LLAMA: dict[str, Any] = {"model_type": "llama", "tied_embeddings": False}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron",
    "gated": False,
    "norm_bias": True,
    "tied_embeddings": False,
}
NEMOTRON_H: dict[str, Any] = {"model_type": "nemotron_h", "gated": False, "tied_embeddings": False}
T5: dict[str, Any] = {"model_type": "t5", "tied_embeddings": False}
NEOX: dict[str, Any] = {**GPT, "model_type": "gpt_neox", "rotary": True, "tied_embeddings": False}
PHI: dict[str, Any] = {**NEOX, "model_type": "phi", "norms": 1, "head_bias": True}
FALCON: dict[str, Any] = {"model_type": "falcon", "gated": False, "norm_bias": True, "tied_embeddings": True}

DEEPSEEK_V3_ATTENTION = LatentAttention(1536, 512, 64, 128, 128)


def _sizes(
    layers: int, hidden: int, heads: int, kv: int, feed_forward: int, vocabulary: int, positions: int = 4096
) -> dict[str, Any]:
    return {
        "layers": layers,
        "hidden_size": hidden,
        "attention_heads": heads,
        "key_value_heads": kv,
        "intermediate_size": feed_forward,
        "vocabulary_size": vocabulary,
        "max_position_embeddings": positions,
    }


# The first pattern that matches a name decides.
ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"llama-?3\.?2?.*\b3b", {**LLAMA, **_sizes(28, 3072, 24, 8, 8192, 128256), "tied_embeddings": True}),
    (r"llama-?3\.?2?.*\b1b", {**LLAMA, **_sizes(16, 2048, 32, 8, 8192, 128256), "tied_embeddings": True}),
    (r"llama-?3.*\b8b", {**LLAMA, **_sizes(32, 4096, 32, 8, 14336, 128256)}),
    (r"llama-?3.*\b70b", {**LLAMA, **_sizes(80, 8192, 64, 8, 28672, 128256)}),
    (r"llama-?3.*\b405b", {**LLAMA, **_sizes(126, 16384, 128, 8, 53248, 128256)}),
    (
        r"llama-?4.*scout",
        {
            **LLAMA,
            **_sizes(48, 5120, 40, 8, 16384, 202048),
            "experts": Experts(16, 1, 8192, 8192),
            "head_dim": 128,
        },
    ),
    (
        r"llama-?4.*maverick",
        {
            **LLAMA,
            **_sizes(48, 5120, 40, 8, 16384, 202048),
            "experts": Experts(128, 1, 8192, 8192, every=2),
            "head_dim": 128,
        },
    ),
    (r"(llama|llama-?2).*\b7b", {**LLAMA, **_sizes(32, 4096, 32, 32, 11008, 32000)}),
    (r"(llama|llama-?2).*\b13b", {**LLAMA, **_sizes(40, 5120, 40, 40, 13824, 32000)}),
    (r"llama-?2.*\b34b", {**LLAMA, **_sizes(48, 8192, 64, 8, 22016, 32000)}),
    (r"llama.*\b(65b)", {**LLAMA, **_sizes(80, 8192, 64, 64, 22016, 32000)}),
    (r"llama.*\b(70b)", {**LLAMA, **_sizes(80, 8192, 64, 8, 28672, 32000)}),
    (r"llama.*\b175b", {**LLAMA, **_sizes(96, 12288, 96, 96, 32768, 32000)}),
    (r"internlm-?7b|internlm.*\b7b", {**LLAMA, **_sizes(32, 4096, 32, 32, 11008, 103168)}),
    (r"internlm.*\b20b", {**LLAMA, **_sizes(60, 5120, 40, 40, 13824, 103168)}),
    (r"mistral.*\b7b", {**LLAMA, **_sizes(32, 4096, 32, 8, 14336, 32000)}),
    (r"mixtral.*8x7b", {**LLAMA, **_sizes(32, 4096, 32, 8, 14336, 32000), "experts": Experts(8, 2, 14336)}),
    (r"mixtral.*8x22b", {**LLAMA, **_sizes(56, 6144, 48, 8, 16384, 32768), "experts": Experts(8, 2, 16384)}),
    (r"mixtral-?8x2b", {**LLAMA, **_sizes(4, 2048, 16, 16, 5440, 32000), "experts": Experts(8, 2, 5440)}),
    (r"grok", {**LLAMA, **_sizes(64, 6144, 48, 8, 32768, 131072), "experts": Experts(8, 2, 32768)}),
    (
        r"qwen-?2\.?5?.*\b7b",
        {**LLAMA, "model_type": "qwen2", **_sizes(28, 3584, 28, 4, 18944, 152064), "query_bias": True},
    ),
    (
        r"qwen-?2\.?5?.*\b32b",
        {**LLAMA, "model_type": "qwen2", **_sizes(64, 5120, 40, 8, 27648, 152064), "query_bias": True},
    ),
    (
        r"qwen-?2\.?5?.*\b72b",
        {**LLAMA, "model_type": "qwen2", **_sizes(80, 8192, 64, 8, 29568, 152064), "query_bias": True},
    ),
    (
        r"qwen-?3.*30b",
        {
            **LLAMA,
            "model_type": "qwen3_moe",
            **_sizes(48, 2048, 32, 4, 6144, 151936),
            "head_dim": 128,
            "head_norms": True,
            "experts": Experts(128, 8, 768),
        },
    ),
    (
        r"qwen-?3.*235b",
        {
            **LLAMA,
            "model_type": "qwen3_moe",
            **_sizes(94, 4096, 64, 4, 12288, 151936),
            "head_dim": 128,
            "head_norms": True,
            "experts": Experts(128, 8, 1536),
        },
    ),
    (
        r"qwen-?3.*\b8b",
        {
            **LLAMA,
            "model_type": "qwen3",
            **_sizes(36, 4096, 32, 8, 12288, 151936),
            "head_dim": 128,
            "head_norms": True,
        },
    ),
    (
        r"deepseek-?v2",
        {
            **LLAMA,
            "model_type": "deepseek_v2",
            **_sizes(60, 5120, 128, 128, 12288, 102400),
            "experts": Experts(160, 6, 1536, 3072, leading_dense_layers=1),
            "latent": LatentAttention(1536, 512, 64, 128, 128),
        },
    ),
    (
        r"deepseek-?v3",
        {
            **LLAMA,
            "model_type": "deepseek_v3",
            **_sizes(61, 7168, 128, 128, 18432, 129280),
            "experts": Experts(256, 8, 2048, 2048, leading_dense_layers=3),
            "latent": DEEPSEEK_V3_ATTENTION,
            "prediction_layers": 1,
        },
    ),
    (
        r"kimi-?k2",
        {
            **LLAMA,
            "model_type": "deepseek_v3",
            **_sizes(61, 7168, 64, 64, 18432, 163840),
            "experts": Experts(384, 8, 2048, 2048, leading_dense_layers=1),
            "latent": DEEPSEEK_V3_ATTENTION,
        },
    ),
    (
        r"gpt-?oss.*120b",
        {
            **LLAMA,
            "model_type": "gpt_oss",
            **_sizes(36, 2880, 64, 8, 2880, 201088),
            "head_dim": 64,
            "query_bias": True,
            "output_bias": True,
            "sinks": True,
            "experts": Experts(128, 4, 2880, router_bias=True, bias=True),
            "sliding_window": 128,
            "sliding_layers": 18,
        },
    ),
    (
        r"gpt-?oss.*20b",
        {
            **LLAMA,
            "model_type": "gpt_oss",
            **_sizes(24, 2880, 64, 8, 2880, 201088),
            "head_dim": 64,
            "query_bias": True,
            "output_bias": True,
            "sinks": True,
            "experts": Experts(32, 4, 2880, router_bias=True, bias=True),
            "sliding_window": 128,
            "sliding_layers": 12,
        },
    ),
    (
        r"nemotron.*nano",
        {
            **NEMOTRON_H,
            **_sizes(52, 2688, 32, 2, 1856, 131072),
            "head_dim": 128,
            "experts": Experts(128, 6, 1856, 3712),
            "hybrid": Hybrid(6, 23, 23, 64, 64, 128, 8),
        },
    ),
    (
        r"nemotron.*super",
        {
            **NEMOTRON_H,
            **_sizes(88, 4096, 32, 2, 2688, 131072),
            "head_dim": 128,
            "experts": Experts(512, 22, 2688, 5376, latent_size=1024),
            "hybrid": Hybrid(8, 40, 40, 128, 64, 128, 8),
            "prediction_layers": 1,
        },
    ),
    (
        r"nemotron.*ultra",
        {
            **NEMOTRON_H,
            **_sizes(108, 8192, 64, 2, 5120, 131072),
            "head_dim": 128,
            "experts": Experts(512, 22, 5120, 10240, latent_size=2048),
            "hybrid": Hybrid(12, 48, 48, 256, 64, 128, 8),
            "prediction_layers": 1,
        },
    ),
    (
        r"nemotron-?h.*56b",
        {
            **NEMOTRON_H,
            **_sizes(118, 8192, 64, 8, 32768, 131072, 8192),
            "head_dim": 128,
            "hybrid": Hybrid(10, 54, 54, 256, 64, 256, 8),
        },
    ),
    (
        r"nemotron-?h.*47b",
        {
            **NEMOTRON_H,
            **_sizes(98, 8192, 64, 8, 30720, 131072, 8192),
            "head_dim": 128,
            "hybrid": Hybrid(9, 45, 44, 256, 64, 256, 8),
        },
    ),
    (
        r"nemotron-?h.*8b",
        {
            **NEMOTRON_H,
            **_sizes(52, 4096, 32, 8, 21504, 131072, 8192),
            "head_dim": 128,
            "hybrid": Hybrid(4, 24, 24, 128, 64, 128, 8),
        },
    ),
    (r"nemotron-?3-?8b", {**NEMOTRON, **_sizes(32, 4096, 32, 32, 16384, 256000)}),
    (r"nemotron-?3-?22b", {**NEMOTRON, **_sizes(40, 6144, 48, 48, 24576, 256000)}),
    (r"nemotron-?4-?15b", {**NEMOTRON, **_sizes(32, 6144, 48, 8, 24576, 256000)}),
    (r"nemotron-?4-?340b", {**NEMOTRON, **_sizes(96, 18432, 96, 8, 73728, 256000)}),
    (r"nemotron", {**NEMOTRON}),
    (r"mpt", {**GPT, "model_type": "mpt", "vocabulary_size": 50368}),
    (r"opt-?350m", {**GPT, "model_type": "opt", **_sizes(24, 1024, 16, 16, 4096, 50272, 2048)}),
    (r"bloom.*7b1", {**GPT, "model_type": "bloom", **_sizes(30, 4096, 32, 32, 16384, 250880, 0)}),
    (r"falcon.*40", {**FALCON, **_sizes(60, 8192, 128, 8, 32768, 65024, 2048), "norms": 2}),
    (r"falcon.*7", {**FALCON, **_sizes(32, 4544, 71, 1, 18176, 65024, 2048), "norms": 1}),
    (r"phi-?1", {**PHI, **_sizes(24, 2048, 32, 32, 8192, 51200, 2048)}),
    (r"phi-?2", {**PHI, **_sizes(32, 2560, 32, 32, 10240, 51200, 2048)}),
    (r"stablelm.*alpha.*3", {**NEOX, **_sizes(16, 4096, 32, 32, 16384, 50688)}),
    (r"stablelm.*alpha.*7", {**NEOX, **_sizes(16, 6144, 48, 48, 24576, 50432)}),
    (r"pythia.*(6\.9|7)b", {**NEOX, **_sizes(32, 4096, 32, 32, 16384, 50432, 2048)}),
    # Encoder and decoder counted as one stack: 24 + 24 layers, the decoder's with a second attention.
    (r"t0-?3b|t5.*xl\b", {**T5, **_sizes(60, 2048, 32, 32, 5120, 32128), "head_dim": 64}),
    (r"mt0-?xxl|t5.*xxl", {**T5, **_sizes(60, 4096, 64, 64, 10240, 250112), "head_dim": 64}),
    (r"gpt-?3?-?5b|gpt5b", {**GPT, **_sizes(24, 4096, 32, 32, 16384, 51200, 2048)}),
    (r"gpt-?3?-?20b", {**GPT, **_sizes(44, 6144, 48, 48, 24576, 51200, 2048)}),
    (r"gpt-?3?-?175b", {**GPT, **_sizes(96, 12288, 96, 96, 49152, 51200, 2048)}),
    (r"gpt-?3?-?126m", {**GPT, **_sizes(12, 768, 12, 12, 3072, 51200, 2048)}),
    (r"gpt2-large", {**GPT, **_sizes(36, 1280, 20, 20, 5120, 50257, 1024)}),
    (r"gpt", {**GPT, "vocabulary_size": 50257}),
)
_MATCHERS = tuple((re.compile(pattern), fields) for pattern, fields in ARCHITECTURES)


def published(name: str) -> dict[str, Any] | None:
    """Fields of `ModelShape` that a name stands for; None for a name that is not known."""
    plain = re.sub(r"[\s_]+", "-", name.lower())
    plain = re.sub(r"(\d)-+b\b", r"\1b", plain)
    for matcher, fields in _MATCHERS:
        if matcher.search(plain):
            return dict(fields)
    return None


def shape(name: str, given: dict[str, Any]) -> tuple[ModelShape, tuple[str, ...]]:
    """A row's model: what the row gives over what the name stands for, and which fields neither gave.

    Raises ValueError when not even the size is known.
    """
    known = published(name)
    fields = {**GPT} if known is None else known
    fields.update(given)
    missing = [key for key in ("layers", "hidden_size") if not fields.get(key)]
    if missing:
        raise ValueError(f"model {name!r} is not known, and {' and '.join(missing)} are not given")
    assumed = [] if known is not None else ["model_type"]
    hidden = fields["hidden_size"]
    fallbacks = {
        "attention_heads": max(1, hidden // 128),
        "key_value_heads": fields.get("attention_heads") or max(1, hidden // 128),
        "intermediate_size": 4 * hidden,
        "vocabulary_size": 50257,
        "max_position_embeddings": 2048,
    }
    for key, value in fallbacks.items():
        if not fields.get(key) and key != "max_position_embeddings":
            assumed.append(key)
        fields[key] = fields.get(key) or value
    fields.setdefault("head_dim", hidden // fields["attention_heads"])
    return ModelShape(**fields), tuple(assumed)
