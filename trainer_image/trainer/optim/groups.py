"""Which parameters decay, and which are hidden matrices; by transformers' names and the shape of the whole.

A name decides where a shape cannot: a norm or a bias never decays, however it is shaped. Everything else with two
or more dimensions does, embeddings and head included, as in transformers' Trainer.
"""

from __future__ import annotations

import re

import torch

from trainer.parameters import Parameter

_NORM = re.compile(r"(norm\d*|ln_[a-z0-9]+|layernorm)\.weight$")
_FUSED = re.compile(r"\.c_attn\.weight$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|wpe)\.weight$")
_VOCABULARY = re.compile(r"(^|\.)(embed_tokens|lm_head|wte|wpe)\.weight$")


def decays(parameter: Parameter) -> bool:
    """Whether weight decay acts on it."""
    name = parameter.name
    return parameter.cut.dim() > 1 and not name.endswith("bias") and not _NORM.search(name)


def is_hidden_matrix(parameter: Parameter) -> bool:
    """Whether it maps hidden states to hidden states: all matrices but embeddings and head."""
    return decays(parameter) and not _VOCABULARY.search(parameter.name)


def is_embedding(parameter: Parameter) -> bool:
    """Whether its rows are looked up. A head that is tied to it goes by its name."""
    return _EMBEDDING.search(parameter.name) is not None


def as_matrices(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A view of the parameter `name` whose last two dims are those of a matrix. A weight that fuses queries, keys and
    values has the three in its middle dim; experts are stacked in the first one already.
    """
    return tensor.movedim(-2, 0) if _FUSED.search(name) and tensor.dim() == 3 else tensor
