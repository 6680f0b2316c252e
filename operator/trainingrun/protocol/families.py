"""Model families that can be trained, and the defaults that transformers gives a config which leaves them out.

The API, the planner and the trainer decide by the same table, so a model is counted as it is built. Standard
library only; how each family's modules are cut is the trainer's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FamilyShape:
    tied: bool = False  # whether the head shares the embedding's weights
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    sliding_window: int | None = None  # tokens that a token sees, itself included; None: all before it
    gated: bool = True  # the feed-forward has a gate: three matrices, not two
    grouped: bool = True  # queries may share keys and values
    rotary: bool = True  # False: positions are learned, and are parameters
    optional: frozenset[str] = frozenset()  # further keys of its config


_ROTARY = frozenset({"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "attention_dropout"})

FAMILIES: dict[str, FamilyShape] = {
    "llama": FamilyShape(optional=_ROTARY | {"attention_bias", "mlp_bias"}),
    "qwen2": FamilyShape(optional=_ROTARY - {"head_dim"}),
    "qwen3": FamilyShape(head_dim=128, optional=_ROTARY | {"attention_bias"}),
    "mistral": FamilyShape(sliding_window=4096, optional=_ROTARY | {"sliding_window"}),
    "gemma": FamilyShape(tied=True, head_dim=256, optional=_ROTARY | {"attention_bias"}),
    "gpt2": FamilyShape(
        tied=True,
        gated=False,
        grouped=False,
        rotary=False,
        optional=frozenset({"layer_norm_epsilon", "resid_pdrop", "embd_pdrop", "attn_pdrop"}),
    ),
}

EXPERTS = frozenset(
    {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "olmoe", "phimoe", "jamba"}
)
EXPERTS_PROBLEM = (
    "a mixture of experts: the loss that balances its experts is a product of means over the whole batch, which "
    "micro-batches and data ranks cannot add up"
)


def tied_embeddings(config: Mapping[str, Any]) -> bool:
    """Whether the head of a model with this transformers config shares the embedding's weights."""
    given = config.get("tie_word_embeddings")
    return FAMILIES[config["model_type"]].tied if given is None else bool(given)


def head_dim(config: Mapping[str, Any]) -> int:
    """Width of one attention head."""
    default = FAMILIES[config["model_type"]].head_dim
    return config.get("head_dim") or default or config["hidden_size"] // config["num_attention_heads"]


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """How far back a token sees; None without a limit."""
    given: int | None = config.get("sliding_window", FAMILIES[config["model_type"]].sliding_window)
    return given
