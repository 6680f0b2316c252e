"""A transformers config becomes a `ModelShape`, or is refused with the reason. Reads a dictionary; never imports
transformers. Called by whatever plans for a model that the trainer need not be able to train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.models.families import FAMILIES
from trainingrun.planner.types import ModelShape

Config = Mapping[str, Any]

# What a config may call the same thing.
NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
}


def shape_of(config: Config) -> ModelShape:
    """Raises PlanInputError for a model that is not known, or that has parts that are not."""
    kind = str(config.get("model_type"))
    family: Callable[[Config], dict[str, Any]] | None = FAMILIES.get(kind)
    if family is None:
        raise PlanInputError(
            "model.config.model_type",
            kind,
            f"the planner does not know how many parameters {kind} has",
            f"use one of: {', '.join(sorted(FAMILIES))}",
        )
    if config.get("is_encoder_decoder"):
        raise PlanInputError(
            "model.config.is_encoder_decoder", True, "an encoder's shape is not known", "use a decoder"
        )
    fields: dict[str, Any] = {"model_type": kind}
    for field, names in NAMES.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None:
            fields[field] = int(value)
    missing = [field for field in ("hidden_size", "layers", "attention_heads") if field not in fields]
    if config.get("vocab_size") is None:
        missing.append("vocab_size")
    if missing:
        raise PlanInputError(
            f"model.config.{missing[0]}", None, f"{', '.join(missing)} not given", "give the whole config"
        )
    fields["vocabulary_size"] = int(config["vocab_size"])
    fields["tied_embeddings"] = bool(config.get("tie_word_embeddings", True))
    fields.setdefault("key_value_heads", fields["attention_heads"])
    fields.setdefault("intermediate_size", 4 * fields["hidden_size"])
    fields.setdefault("max_position_embeddings", 2048)
    fields["head_dim"] = int(config.get("head_dim") or fields["hidden_size"] // fields["attention_heads"])
    try:
        fields.update(family(config))
    except KeyError as error:
        raise PlanInputError(
            f"model.config.{error.args[0]}", None, f"{kind} needs it", "give the whole config"
        ) from error
    except TypeError as error:  # null where a number is needed
        raise PlanInputError(
            "model.config", None, f"a size of {kind} is null", "give the whole config"
        ) from error
    return ModelShape(**fields)
