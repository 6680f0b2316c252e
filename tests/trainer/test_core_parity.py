"""Every layout trains as a plain transformers loop does, in float64 to the last digits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.comparing import a_recipe, compare, initial_weights, plain
from tests.trainer.worlds import run_world


def differences(*arguments: Any, **axes: Any) -> tuple[float, float, float]:
    """Largest differences of loss, gradient norm and final parameters."""
    found = compare(*arguments, **axes)
    return found.loss, found.norm, found.parameters


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
