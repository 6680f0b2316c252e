"""`spec.model`: the shape of the model, as far as the trainer decides by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.config.fields import positive
from trainer.errors import ConfigError
from trainingrun.protocol.families import EXPERTS, EXPERTS_PROBLEM, FAMILIES, tied_embeddings


@dataclass(frozen=True)
class ModelConfig:
    """`transformers_config` goes to transformers as it is; the other fields are what the trainer decides
    by.
    """

    transformers_config: dict[str, Any]
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    positions: int
    tied_embeddings: bool
    vocabulary_size: int | None  # None: only the tokenizer knows


def read_model(model: dict[str, Any]) -> ModelConfig:
    given = model["config"]
    where = "spec.model.config"
    _check_family(given, where)
    heads = positive(given, "num_attention_heads", where)
    hidden = positive(given, "hidden_size", where)
    if not given.get("head_dim") and not FAMILIES[given["model_type"]].head_dim and hidden % heads:
        raise ConfigError(
            f"{where}.hidden_size",
            hidden,
            f"not a multiple of num_attention_heads = {heads}",
            f"use {hidden // heads * heads or heads} or {(hidden // heads + 1) * heads}",
        )
    key_value_heads = heads if given.get("num_key_value_heads") is None else given["num_key_value_heads"]
    if not isinstance(key_value_heads, int) or key_value_heads < 1 or heads % key_value_heads:
        raise ConfigError(
            f"{where}.num_key_value_heads",
            key_value_heads,
            f"does not divide num_attention_heads = {heads}",
            "use a divisor of it",
        )
    tokenizer = model.get("tokenizer") or {}
    vocabulary = given.get("vocab_size") or (tokenizer.get("train") or {}).get("vocabularySize")
    return ModelConfig(
        transformers_config=dict(given),
        hidden_size=hidden,
        intermediate_size=positive(given, "intermediate_size", where),
        layers=positive(given, "num_hidden_layers", where),
        attention_heads=heads,
        key_value_heads=key_value_heads,
        positions=int(given.get("max_position_embeddings", 2048)),
        tied_embeddings=tied_embeddings(given),
        vocabulary_size=vocabulary,
    )


def _check_family(given: dict[str, Any], where: str) -> None:
    """A key that the family does not have would be kept by transformers, and never act."""
    kind = given.get("model_type")
    if kind in EXPERTS or "moe" in str(kind) or given.get("num_local_experts") or given.get("num_experts"):
        raise ConfigError(f"{where}.model_type", kind, EXPERTS_PROBLEM, f"use one of {', '.join(FAMILIES)}")
    if kind not in FAMILIES:
        raise ConfigError(f"{where}.model_type", kind, "not supported", f"use one of {', '.join(FAMILIES)}")
    optional = {key for family in FAMILIES.values() for key in family.optional}
    for key in sorted((optional - FAMILIES[kind].optional) & given.keys()):
        if given[key] is not None:
            raise ConfigError(
                f"{where}.{key}", given[key], f"a model of the type {kind} has none", "remove it"
            )


def vocabulary_size(model: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, and never fewer than the tokenizer has tokens."""
    wanted = model.vocabulary_size
    if wanted is not None and wanted < tokenizer_size:
        raise ConfigError(
            "spec.model.config.vocab_size",
            wanted,
            f"the tokenizer has {tokenizer_size} tokens",
            f"use at least {tokenizer_size}, or leave it out",
        )
    return wanted if wanted is not None else tokenizer_size
