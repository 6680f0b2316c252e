"""Operations of a token, forward and backward.

A product with K x N weights is 2 K N operations forward and twice that backward. Attention is 2 x tokens that
are looked at x (query-key and value elements) forward. "causal" counts the tokens before, "whole" all of the
sequence (as many published rates do), "none" leaves attention out. What is computed again is counted only by
`recomputed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.types import ModelShape

ATTENTION = ("none", "causal", "whole")


@dataclass(frozen=True, slots=True)
class Products:
    """Weights that one token is multiplied with, and what its attention works on."""

    layers: float
    head: float
    looking: float  # query-key and value elements, of layers that look at everything
    windowed: float  # of layers that look back `sliding_window` tokens


@lru_cache(maxsize=4096)
def products(model: ModelShape) -> Products:
    hidden, hybrid, experts = model.hidden_size, model.hybrid, model.experts
    layers = model.layers + model.prediction_layers
    attending = hybrid.attention_layers if hybrid else layers
    feeding = hybrid.feed_forward_layers if hybrid else layers
    sparse = (feeding if hybrid else experts.layers(layers)) if experts else 0
    wide = 3 if model.gated else 2
    weights = attending * attention_weights(model)
    weights += (feeding - sparse) * wide * hidden * model.intermediate_size
    if experts:
        outside = experts.latent_size or hidden
        each = experts.per_token * wide * outside * experts.intermediate_size
        each += wide * hidden * experts.shared_intermediate_size + hidden * experts.count
        each += 2 * hidden * experts.latent_size
        weights += sparse * each
    if hybrid:
        channels = hybrid.state_heads * hybrid.state_head_dim
        inputs = 2 * channels + 2 * hybrid.groups * hybrid.state_size + hybrid.state_heads
        weights += hybrid.state_layers * hidden * (inputs + channels)
    elements = attention_elements(model)
    sliding = min(model.sliding_layers, attending) if model.sliding_window else 0
    head = float((1 + model.prediction_layers) * model.vocabulary_size * hidden)
    return Products(weights, head, (attending - sliding) * elements, sliding * elements)


def attention_weights(model: ModelShape) -> float:
    """Of one layer's queries, keys, values and output."""
    hidden, heads = model.hidden_size, model.attention_heads
    latent = model.latent
    if latent is None:
        return 2.0 * hidden * model.head_dim * (heads + model.key_value_heads)
    query = heads * latent.query_dim
    count = latent.query_rank * (hidden + query) if latent.query_rank else hidden * query
    count += hidden * (latent.key_value_rank + latent.rotary_dim)
    count += latent.key_value_rank * heads * (latent.nope_dim + latent.value_dim)
    return float(count + heads * latent.value_dim * hidden)


def attention_elements(model: ModelShape) -> float:
    """Of one layer's queries (as its keys) and values, all heads."""
    latent = model.latent
    if latent is not None:
        return float(model.attention_heads * (latent.query_dim + latent.value_dim))
    return 2.0 * model.attention_heads * model.head_dim


def flops_per_token(
    model: ModelShape, sequence: int, *, attention: str = "causal", recomputed: bool = False
) -> float:
    """`recomputed`: the layers' forward pass counts twice, the head's once, as hardware FLOPs do."""
    if attention not in ATTENTION:
        raise ValueError(f"attention {attention!r} is none of {', '.join(ATTENTION)}")
    found = products(model)
    looked = 0.0
    if attention != "none":
        share = 0.5 if attention == "causal" else 1.0
        window = min(model.sliding_window, share * sequence)
        looked = found.looking * sequence * share + found.windowed * window
    passes = 4.0 if recomputed else 3.0
    return passes * 2.0 * (found.layers + looked) + 6.0 * found.head
