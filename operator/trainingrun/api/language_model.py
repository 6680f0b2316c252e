"""spec.model: the shape of the model, where its weights come from, and its tokenizer.

The keys of `config` keep their transformers names: they are handed to transformers as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field, StrictBool, field_validator

from trainingrun.api import uris
from trainingrun.api.base import Block
from trainingrun.api.cel import exactly_one, rule, rules
from trainingrun.api.errors import FieldError
from trainingrun.protocol.families import FAMILIES

_CONFIG = "spec.model.config"


_LIMITED = sorted(
    {key for family in FAMILIES.values() for key in family.optional}
    - frozenset.intersection(*(family.optional for family in FAMILIES.values()))
)
"""Keys that some families do not have: transformers would keep them, and they would never act."""


def _has_it(key: str) -> str:
    kinds = ", ".join(f"'{kind}'" for kind, family in FAMILIES.items() if key in family.optional)
    return f"(!has(self.{key}) || self.model_type in [{kinds}])"


class TransformersConfig(Block):
    """A transformers config. Keys that are left out have the defaults of transformers."""

    model_config = ConfigDict(
        alias_generator=None,
        json_schema_extra=rules(
            rule(
                "!has(self.num_key_value_heads) || self.num_attention_heads % self.num_key_value_heads == 0",
                f"{_CONFIG}.num_key_value_heads: must divide num_attention_heads; hint: set it to a divisor",
                f"{_CONFIG}.num_key_value_heads: %d does not divide num_attention_heads (%d); "
                "hint: set it to a divisor",
                "self.num_key_value_heads",
                "self.num_attention_heads",
            ),
            rule(
                "has(self.head_dim) || self.model_type in ['qwen3', 'gemma'] || "
                "self.hidden_size % (2 * self.num_attention_heads) == 0",
                f"{_CONFIG}.hidden_size: must be an even multiple of num_attention_heads; "
                "hint: change one of them, or set head_dim",
                f"{_CONFIG}.hidden_size: %d is not an even multiple of num_attention_heads (%d); "
                "hint: change one of them, or set head_dim",
                "self.hidden_size",
                "self.num_attention_heads",
            ),
            rule(
                " && ".join(_has_it(key) for key in _LIMITED),
                f"{_CONFIG}: has a key that models of its model_type do not have; hint: remove it",
            ),
        ),
    )
    model_type: Literal["llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2"] = Field(
        description="Architecture, as transformers names it. Mixtures of experts are not trained."
    )
    hidden_size: int = Field(
        ge=2, le=131072, description="Width of the residual stream (in a file of gpt2: n_embd)."
    )
    intermediate_size: int = Field(
        ge=1, le=1048576, description="Width inside the feed-forward blocks (gpt2: n_inner)."
    )
    num_hidden_layers: int = Field(ge=1, le=1024, description="Decoder layers.")
    num_attention_heads: int = Field(ge=1, le=1024, description="Query heads of each layer.")
    num_key_value_heads: int | None = Field(
        None, ge=1, le=1024, description="Key and value heads of each layer; omitted: as many as query heads."
    )
    head_dim: int | None = Field(
        None,
        ge=2,
        le=1024,
        multiple_of=2,
        description="Width of one head, even; omitted: 128 for qwen3, 256 for gemma, else hidden_size / "
        "num_attention_heads.",
    )
    vocab_size: int | None = Field(
        None, ge=2, le=4194304, description="Rows of the embedding; omitted: the size of the tokenizer."
    )
    max_position_embeddings: int = Field(
        ge=2, le=16777216, description="Longest sequence that the model accepts, in tokens."
    )
    tie_word_embeddings: StrictBool | None = Field(
        None,
        description="Whether the output layer shares the weights of the embedding; omitted: true for gemma and gpt2, "
        "else false.",
    )
    rms_norm_eps: float | None = Field(
        None, ge=1e-12, le=0.1, description="Epsilon of the RMS norms; omitted: 1e-6."
    )
    rope_theta: float | None = Field(
        None, ge=1, le=1e12, description="Base of the rotary position embedding; omitted: 10000."
    )
    layer_norm_epsilon: float | None = Field(
        None, ge=1e-12, le=0.1, description="Epsilon of the layer norms of gpt2; omitted: 1e-5."
    )
    attention_bias: StrictBool | None = Field(
        None,
        description="Whether the attention's projections have biases; omitted: false. Those of qwen2 always have.",
    )
    mlp_bias: StrictBool | None = Field(
        None, description="Whether the feed-forward blocks of llama have biases; omitted: false."
    )
    sliding_window: int | None = Field(
        None,
        ge=1,
        le=16777216,
        description="How many tokens a token of mistral sees, itself included; omitted: 4096.",
    )
    attention_dropout: float | None = Field(
        None, ge=0, le=0.99, description="Share of the attention weights that are dropped; omitted: 0."
    )
    resid_pdrop: float | None = Field(
        None, ge=0, le=0.99, description="Share of what the blocks of gpt2 add that is dropped; omitted: 0.1."
    )
    embd_pdrop: float | None = Field(
        None, ge=0, le=0.99, description="Share of the embeddings of gpt2 that is dropped; omitted: 0.1."
    )
    attn_pdrop: float | None = Field(
        None,
        ge=0,
        le=0.99,
        description="Share of the attention weights of gpt2 that are dropped; omitted: 0.1.",
    )
    initializer_range: float | None = Field(
        None, ge=1e-6, le=10, description="Standard deviation of the random weights; omitted: 0.02."
    )

    def problems(self) -> Iterator[FieldError]:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if groups is not None and heads % groups:
            below, above = _neighbours(groups, [d for d in range(1, heads + 1) if heads % d == 0])
            yield FieldError(
                "num_key_value_heads",
                groups,
                f"{groups} does not divide num_attention_heads: {heads} = {heads // groups} x {groups} + "
                f"{heads % groups}",
                f"use {_either(below, above)}",
            )
        for key in sorted(set(_LIMITED) - FAMILIES[self.model_type].optional):
            if getattr(self, key) is not None:
                yield FieldError(
                    key, getattr(self, key), f"a model of the type {self.model_type} has none", "remove it"
                )
        width = FAMILIES[self.model_type].head_dim
        if self.head_dim is None and width is None and self.hidden_size % (2 * heads):
            step = 2 * heads
            below = self.hidden_size // step * step
            yield FieldError(
                "hidden_size",
                self.hidden_size,
                f"{self.hidden_size} / num_attention_heads ({heads}) = {self.hidden_size / heads:g} is not "
                f"an even "
                "width for a head",
                f"use {_either(below or None, below + step)}, or set head_dim",
            )


class TokenizerTraining(Block):
    """A byte-level BPE tokenizer, trained on the run's own training data before the first step."""

    vocabulary_size: int = Field(
        ge=260,
        le=1048576,
        description="Entries of the vocabulary, the 256 bytes and special tokens included.",
    )


class Tokenizer(Block):
    """Exactly one of `uri` and `train`."""

    model_config = ConfigDict(json_schema_extra=rules(exactly_one("spec.model.tokenizer", "uri", "train")))
    uri: str | None = Field(
        None,
        max_length=uris.URI_LIMIT,
        description="The folder of a tokenizer in the form that transformers loads: pvc://claim/path on a "
        "PersistentVolumeClaim beside the run, or file:// and its path.",
        json_schema_extra=rules(*uris.FOLDER_RULES),
    )
    train: TokenizerTraining | None = Field(None, description="Train one on the training data.")

    @field_validator("uri")
    @classmethod
    def _known_place(cls, uri: str | None) -> str | None:
        return None if uri is None else uris.check_folder_uri(uri)

    def problems(self) -> Iterator[FieldError]:
        if (self.uri is None) == (self.train is None):
            which = "neither uri nor train is set" if self.uri is None else "both uri and train are set"
            yield FieldError("", None, which, "set exactly one, for example {train: {vocabularySize: 4096}}")


class Source(Block):
    """The model that training starts from."""

    uri: str = Field(
        min_length=1,
        max_length=uris.URI_LIMIT,
        description="A folder of weights that transformers wrote (config.json, safetensors): pvc://claim/path on a "
        "PersistentVolumeClaim beside the run, or file:// and its path.",
        json_schema_extra=rules(*uris.FOLDER_RULES),
    )

    @field_validator("uri")
    @classmethod
    def _known_place(cls, uri: str) -> str:
        return uris.check_folder_uri(uri)


class Model(Block):
    """What is trained."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.config.vocab_size) || !has(self.tokenizer) || !has(self.tokenizer.train) || "
                "self.config.vocab_size == self.tokenizer.train.vocabularySize",
                f"{_CONFIG}.vocab_size: differs from spec.model.tokenizer.train.vocabularySize; "
                "hint: remove vocab_size",
                f"{_CONFIG}.vocab_size: %d differs from spec.model.tokenizer.train.vocabularySize (%d); "
                "hint: remove vocab_size",
                "self.config.vocab_size",
                "self.tokenizer.train.vocabularySize",
            ),
            rule(
                "has(self.source) == (self.init == 'Weights')",
                "spec.model.source: is there with init: Weights, and only then; "
                "hint: name the folder of the weights, or use init: Config without one",
            ),
            rule(
                "has(self.tokenizer) || self.init == 'Weights'",
                "spec.model.tokenizer: required, but not there; hint: set exactly one of uri and train",
            ),
            rule(
                "self.init != 'Weights' || !has(self.tokenizer) || !has(self.tokenizer.train)",
                "spec.model.tokenizer.train: a new tokenizer does not fit weights that know another; "
                "hint: remove spec.model.tokenizer, and the source's own is used",
            ),
            rule(
                "self.init != 'Weights' || has(self.config.vocab_size)",
                f"{_CONFIG}.vocab_size: required with init: Weights; hint: copy it from the source's config.json",
            ),
        )
    )
    init: Literal["Config", "Weights"] = Field(
        description="Where the weights come from. Config: random, of the shape of config. Weights: those of source, "
        "of which config is the config."
    )
    source: Source | None = Field(None, description="The weights to start from, with init: Weights.")
    config: TransformersConfig = Field(description="The model's shape: a transformers config.")
    tokenizer: Tokenizer | None = Field(
        None,
        description="The tokenizer: exactly one of uri and train. With init: Weights, omitted: the source's own.",
    )

    def problems(self) -> Iterator[FieldError]:
        train = self.tokenizer.train if self.tokenizer is not None else None
        size = self.config.vocab_size
        if train is not None and size is not None and size != train.vocabulary_size:
            yield FieldError(
                "config.vocab_size",
                size,
                f"{size} differs from spec.model.tokenizer.train.vocabularySize ({train.vocabulary_size})",
                f"remove vocab_size, or set it to {train.vocabulary_size}",
            )
        if self.init == "Config":
            yield from self._problems_of_random_weights()
            return
        if self.source is None:
            fix = "name the folder of the weights, for example {uri: pvc://models/llama}"
            yield FieldError("source", None, "required with init: Weights, but not there", fix)
            return
        if train is not None:
            message = "a new tokenizer does not fit weights that know another"
            yield FieldError("tokenizer.train", None, message, "remove it, and the source's own is used")
        if size is None:
            fix = "copy it from the source's config.json"
            yield FieldError("config.vocab_size", None, "required with init: Weights, but not there", fix)

    def _problems_of_random_weights(self) -> Iterator[FieldError]:
        if self.source is not None:
            fix = "use init: Weights, or remove it"
            yield FieldError("source", self.source.uri, "does nothing with init: Config", fix)
        if self.tokenizer is None:
            yield FieldError("tokenizer", None, "required, but not there", "set exactly one of uri and train")


def _neighbours(value: int, allowed: list[int]) -> tuple[int | None, int | None]:
    below = [one for one in allowed if one < value]
    above = [one for one in allowed if one > value]
    return (max(below) if below else None), (min(above) if above else None)


def _either(*options: int | None) -> str:
    return " or ".join(str(option) for option in options if option is not None)
