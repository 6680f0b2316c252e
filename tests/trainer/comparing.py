"""Runs a layout of ours and the plain loop on the same recipe, and says how far apart they end.

Used by the parity tests and by `python -m benchmarks.parity`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from tests.trainer import layouts, parity
from tests.trainer.worlds import run_world

from trainer.architecture import model_config
from trainer.families import FAMILIES, stored_shape
from trainer.initial import initial_tensor

STEPS = 20
SPECIAL = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


@dataclass(frozen=True)
class Comparison:
    """Largest differences between ours and the plain loop, and what the plain loop did."""

    loss: float
    norm: float
    parameters: float
    first_loss: float
    last_loss: float
    least_norm: float  # before clipping to 1


def initial_weights(model: dict[str, Any]) -> dict[str, torch.Tensor]:
    """In float32, by transformers' names, in the shapes of our state."""
    with torch.device("meta"):
        whole = parity.plain_model(model, float64_norms=False)
    config = model_config(model, model["vocab_size"])
    shapes = {name: tuple(parameter.shape) for name, parameter in whole.named_parameters()}
    return {
        name: initial_tensor(name, stored_shape(model["model_type"], name, shape), config, seed=5)
        for name, shape in shapes.items()
    }


@functools.cache
def a_recipe(kind: str = "float64", steps: int = STEPS, global_batch: int = 8) -> parity.Recipe:
    """`kind`: float64, special (tied embeddings, biases), transformers (its own norms, in float64), a family in
    float64, or "float32 FAMILY".
    """
    single, _, family = kind.partition("float32")
    if not single:
        model = parity.tiny_model(family.strip() or "llama")
    elif kind in FAMILIES:
        model = parity.tiny_model(kind)
    else:
        model = parity.tiny_model(**(SPECIAL if kind == "special" else {}))
    return parity.Recipe(
        model,
        initial_weights(model),
        steps,
        global_batch,
        learning_rates=[3e-3 * min(1.0, step / 3) for step in range(1, steps + 1)],
        dtype=torch.float64 if single else torch.float32,
        float64_norms=bool(single) and kind != "transformers",
    )


@functools.cache
def plain(kind: str = "float64", steps: int = STEPS, global_batch: int = 8) -> parity.Outcome:
    torch.set_num_threads(1)
    return parity.plain_training(a_recipe(kind, steps, global_batch))


def compare(kind: str = "float64", steps: int = STEPS, global_batch: int = 8, **axes: Any) -> Comparison:
    """`axes` as `layouts.a_rung` takes them. Fails when ranks disagree, or copies of a weight do."""
    expected = plain(kind, steps, global_batch)
    rung = layouts.a_rung(global_batch=global_batch, **axes)
    recipe = a_recipe(kind, steps, global_batch)
    ranks: list[parity.Outcome] = run_world(layouts.train, rung.world, rung, recipe)
    weights: dict[str, torch.Tensor] = {}
    for rank in ranks:
        assert rank.losses == ranks[0].losses, "ranks disagree on the loss"
        for name, value in rank.weights.items():
            assert torch.equal(weights.setdefault(name, value), value), f"copies of {name} drifted apart"
    assert weights.keys() == expected.weights.keys()
    weights = {name: weight.view(expected.weights[name].shape) for name, weight in weights.items()}
    return Comparison(
        loss=max(abs(a - b) for a, b in zip(ranks[0].losses, expected.losses, strict=True)),
        norm=max(abs(a - b) for a, b in zip(ranks[0].norms, expected.norms, strict=True)),
        parameters=max(float((weights[n] - expected.weights[n]).abs().max()) for n in weights),
        first_loss=expected.losses[0],
        last_loss=expected.losses[-1],
        least_norm=min(expected.norms),
    )
