"""Does a folder of weights hold the model that `spec.model.config` describes? As far as its config.json alone tells.

Names and spellings of transformers' config files differ between its versions and families; here everything has the name
that the specification has for it. Only what both sides say, or leave to a default that is known, is compared: what is
left is found by the trainer, with transformers, before a rank starts. Pure; used by the command line before it starts a
run, by the agent before it imports anything, and by the trainer's whole comparison for the names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.protocol.families import FAMILIES, head_dim, tied_embeddings

CONFIG_FILE = "config.json"
ROPE_THETA = 10_000.0
RMS_NORM_EPS = 1e-6
_GPT2 = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
_COMMON = frozenset(
    {
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "initializer_range",
    }
)
# What a run may choose for itself, with any weights.
_FREE = frozenset(
    {"initializer_range", "max_position_embeddings"}
    | {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}
)


@dataclass(frozen=True)
class Misfit:
    """A key of spec.model.config that says something else than the folder's file. `given` None: it was left out."""

    key: str
    given: Any
    theirs: Any

    @property
    def problem(self) -> str:
        return f"the model there was made with {self.theirs!r}"

    @property
    def fix(self) -> str:
        return fix_for(self.key, self.theirs)


def keys_of(model_type: str) -> frozenset[str]:
    """What spec.model.config may say of a model of this family."""
    return _COMMON | FAMILIES[model_type].optional


def fix_for(key: str, theirs: Any) -> str:
    if key == "model_type":
        return "give the config of the model in that folder"
    return f"set {key}: {str(theirs).lower() if isinstance(theirs, bool) else theirs}, or name another model"


def as_given(content: Mapping[str, Any]) -> dict[str, Any]:
    """A transformers config, of a file or of its `to_dict`, with the names of spec.model.config."""
    old = _GPT2 if content.get("model_type") == "gpt2" else {}
    values = {old.get(key, key): value for key, value in content.items()}
    if old and values.get("intermediate_size") is None and isinstance(values.get("hidden_size"), int):
        values["intermediate_size"] = 4 * values["hidden_size"]
    rope = values.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_theta" in rope:
        values["rope_parameters"] = {key: value for key, value in rope.items() if key != "rope_theta"}
        values["rope_theta"] = rope["rope_theta"]
    return values


def misfits(given: Mapping[str, Any], content: Mapping[str, Any]) -> tuple[Misfit, ...]:
    """`given`: spec.model.config; `content`: of the folder's config.json. In the order of the keys' names."""
    theirs = as_given(content)
    if theirs.get("model_type") != given["model_type"]:
        return (Misfit("model_type", given["model_type"], theirs.get("model_type")),)
    ours = {**_defaults(given), **{key: value for key, value in given.items() if value is not None}}
    return tuple(
        Misfit(key, given.get(key), theirs[key])
        for key in sorted(keys_of(given["model_type"]) - _FREE)
        if ours.get(key) is not None and theirs.get(key) is not None and not same(ours[key], theirs[key])
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=1e-12)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    return bool(one == other)


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    family = FAMILIES[given["model_type"]]
    values: dict[str, Any] = {"tie_word_embeddings": tied_embeddings(given)}
    if family.rotary:
        values |= {"rope_theta": ROPE_THETA, "rms_norm_eps": RMS_NORM_EPS}
    if "head_dim" in family.optional:
        values["head_dim"] = head_dim(given)
    if family.sliding_window is not None and "sliding_window" not in given:
        values["sliding_window"] = family.sliding_window
    return values
