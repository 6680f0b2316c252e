"""Every layout trains as a plain transformers loop does, in float64 to the last digits."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.worlds import run_world
from transformers import AutoModelForCausalLM, LlamaConfig

from trainer.initial import initial_tensor

STEPS = 20
SPECIAL = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


def initial_weights(model: dict[str, Any]) -> dict[str, torch.Tensor]:
    values = {key: value for key, value in model.items() if key != "model_type"}
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(LlamaConfig(**values))
    return {n: initial_tensor(n, p.shape, seed=5, deviation=0.02) for n, p in whole.named_parameters()}


def a_recipe(
    steps: int = STEPS, global_batch: int = 8, dtype: torch.dtype = torch.float64, **changes: Any
) -> parity.Recipe:
    model = parity.tiny_model(**changes)
    rates = [3e-3 * min(1.0, step / 3) for step in range(1, steps + 1)]
    return parity.Recipe(model, initial_weights(model), steps, global_batch, rates, dtype=dtype)


@functools.cache
def plain(steps: int, global_batch: int, dtype: torch.dtype, special: bool) -> parity.Outcome:
    torch.set_num_threads(1)
    return parity.plain_training(a_recipe(steps, global_batch, dtype, **(SPECIAL if special else {})))


def differences(
    steps: int = STEPS,
    global_batch: int = 8,
    dtype: torch.dtype = torch.float64,
    special: bool = False,
    **axes: int,
) -> tuple[float, float, float]:
    """Largest differences of loss, gradient norm and final parameters between ours and the plain loop."""
    expected = plain(steps, global_batch, dtype, special)
    rung = layouts.a_rung(global_batch=global_batch, **axes)
    recipe = a_recipe(steps, global_batch, dtype, **(SPECIAL if special else {}))
    ranks: list[parity.Outcome] = run_world(layouts.train, rung.world, rung, recipe)
    weights: dict[str, torch.Tensor] = {}
    for rank in ranks:
        assert rank.losses == ranks[0].losses, "ranks disagree on the loss"
        for name, value in rank.weights.items():
            assert torch.equal(weights.setdefault(name, value), value), f"copies of {name} drifted apart"
    assert weights.keys() == expected.weights.keys()
    return (
        max(abs(a - b) for a, b in zip(ranks[0].losses, expected.losses, strict=True)),
        max(abs(a - b) for a, b in zip(ranks[0].norms, expected.norms, strict=True)),
        max(float((weights[n] - expected.weights[n]).abs().max()) for n in weights),
    )


def test_the_recipe_is_a_real_test() -> None:
    """The loss starts at ln V and falls, and clipping really clips."""
    outcome = plain(STEPS, 8, torch.float64, False)
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


def test_padding_micro_batches_weigh_nothing() -> None:
    """Six sequences over four data ranks: two places of each step are padding."""
    assert max(differences(steps=5, global_batch=6, replicate=4, micro_batch=1)) <= 1e-9


def test_parameters_that_do_not_divide_are_sharded_unevenly() -> None:
    assert max(differences(steps=5, shard=3, global_batch=6)) <= 1e-9


def test_tied_embeddings_and_biases_are_cut_right() -> None:
    assert max(differences(steps=5, special=True, tensor=2, replicate=2)) <= 1e-9
    assert max(differences(steps=5, special=True, tensor=2, shard=2)) <= 1e-9


def test_float32_differs_by_rounding_only() -> None:
    loss, _, _ = differences(steps=10, dtype=torch.float32, tensor=2, replicate=2)
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
