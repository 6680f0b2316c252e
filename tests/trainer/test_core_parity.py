"""Every layout trains as a plain transformers loop does, in float64 to the last digits."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.worlds import run_world

from trainer.architecture import model_config
from trainer.families import FAMILIES, stored_shape
from trainer.initial import initial_tensor

STEPS = 20
SPECIAL = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


def initial_weights(model: dict[str, Any]) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        whole = parity.plain_model(model, float64_norms=False)
    config = model_config(model, model["vocab_size"])
    return {
        name: initial_tensor(
            name, stored_shape(model["model_type"], name, tuple(parameter.shape)), config, seed=5
        )
        for name, parameter in whole.named_parameters()
    }


@functools.cache
def a_recipe(kind: str = "float64", steps: int = STEPS, global_batch: int = 8) -> parity.Recipe:
    """`kind`: float64, float32, special (tied embeddings, biases), transformers (its own norms, in float64), or a
    family in float64.
    """
    if kind in FAMILIES:
        model = parity.tiny_model(kind)
    else:
        model = parity.tiny_model(**(SPECIAL if kind == "special" else {}))
    return parity.Recipe(
        model,
        initial_weights(model),
        steps,
        global_batch,
        learning_rates=[3e-3 * min(1.0, step / 3) for step in range(1, steps + 1)],
        dtype=torch.float32 if kind == "float32" else torch.float64,
        float64_norms=kind not in ("float32", "transformers"),
    )


@functools.cache
def plain(kind: str = "float64", steps: int = STEPS, global_batch: int = 8) -> parity.Outcome:
    torch.set_num_threads(1)
    return parity.plain_training(a_recipe(kind, steps, global_batch))


def differences(
    kind: str = "float64", steps: int = STEPS, global_batch: int = 8, **axes: Any
) -> tuple[float, float, float]:
    """Largest differences of loss, gradient norm and final parameters between ours and the plain loop."""
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
    return (
        max(abs(a - b) for a, b in zip(ranks[0].losses, expected.losses, strict=True)),
        max(abs(a - b) for a, b in zip(ranks[0].norms, expected.norms, strict=True)),
        max(float((weights[n] - expected.weights[n]).abs().max()) for n in weights),
    )


def test_the_recipe_is_a_real_test() -> None:
    """The loss starts at ln V and falls, and clipping really clips."""
    outcome = plain()
    assert outcome.losses[0] == pytest.approx(math.log(parity.VOCABULARY), abs=0.1)
    assert outcome.losses[-1] < outcome.losses[0] - 1
    assert min(outcome.norms) > 1.0


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"tensor": 2, "replicate": 2},
        {"shard": 2, "tensor": 2},
        {"shard": 2, "replicate": 2},
        {"pipeline": 2, "tensor": 2},
        {"pipeline": 2, "replicate": 2},
        {"pipeline": 2, "shard": 2},
    ],
    ids=lambda axes: " x ".join(f"{axis} {degree}" for axis, degree in axes.items()) or "single",
)
def test_a_layout_trains_as_a_plain_loop_does(axes: dict[str, int]) -> None:
    loss, norm, parameters = differences(**axes)
    assert loss <= 1e-9
    assert norm <= 1e-9
    assert parameters <= 1e-8


def test_with_transformers_own_norms_the_numbers_are_those_of_transformers_as_it_is() -> None:
    """Nothing of the plain model is replaced here: the token weights enter the loss where a mean has them."""
    loss, norm, parameters = differences("transformers", tensor=2, replicate=2)
    assert loss <= 1e-9
    assert norm <= 1e-9
    assert parameters <= 1e-8


def test_a_change_of_layout_stays_within_float64_over_many_steps() -> None:
    recipe = a_recipe(steps=40)._replace(learning_rates=[5e-3] * 40)
    single, cut = layouts.a_rung(micro_batch=8), layouts.a_rung(tensor=2, micro_batch=4)
    first, second = (run_world(layouts.train, rung.world, rung, recipe)[0].losses for rung in (single, cut))
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) <= 1e-9


def test_padding_micro_batches_weigh_nothing() -> None:
    """Six sequences over four data ranks: two places of each step are padding."""
    assert max(differences(steps=5, global_batch=6, replicate=4, micro_batch=1)) <= 1e-9


def test_parameters_that_do_not_divide_are_sharded_unevenly() -> None:
    assert max(differences(steps=5, shard=3, global_batch=6)) <= 1e-9


def test_tied_embeddings_and_biases_are_cut_right() -> None:
    assert max(differences("special", steps=5, tensor=2, replicate=2)) <= 1e-9
    assert max(differences("special", steps=5, tensor=2, shard=2)) <= 1e-9


def test_float32_differs_by_rounding_only() -> None:
    loss, _, _ = differences("float32", steps=10, tensor=2, replicate=2)
    assert loss <= 5e-6


def test_initial_weights_are_the_same_bits_for_every_layout() -> None:
    model = parity.tiny_model()
    expected = initial_weights(model)
    for axes in ({}, {"shard": 2, "tensor": 2}, {"pipeline": 2, "tensor": 2}, {"shard": 3}):
        rung = layouts.a_rung(**axes)
        found: dict[str, torch.Tensor] = {}
        for weights in run_world(layouts.initial_weights, rung.world, rung, model):
            found |= weights
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), axes
