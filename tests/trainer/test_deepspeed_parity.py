"""The engine DeepSpeed trains as a plain transformers loop does, at every stage of ZeRO, and compiles nothing."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.trainer import numerics, parity
from tests.trainer.comparing import initial_weights
from tests.trainer.deepspeed_worlds import Kind, Seen, preload, train_all
from tests.trainer.layouts import a_rung
from tests.trainer.worlds import run_world

preload()
STEPS = 5
KINDS = [
    Kind(1),
    Kind(2),
    Kind(3),
    Kind(1, "Optimizer"),
    Kind(2, "Optimizer"),
    Kind(3, "Optimizer"),
    Kind(3, "OptimizerAndParameters"),
    Kind(3, activations="Selective"),
    # Several buckets, and an embedding that is larger than one.
    Kind(1, bucket=20_000),
    Kind(2, bucket=20_000),
    Kind(3, bucket=20_000),
]
HALF = [
    Kind(1, precision="BF16"),
    Kind(2, precision="BF16", bucket=20_000),
    Kind(3, "OptimizerAndParameters", "BF16"),
]


def outcomes(kinds: list[Kind], recipe: parity.Recipe, world: int = 2) -> dict[Kind, list[Seen]]:
    """By kind, what each rank saw."""
    ranks: list[list[Seen]] = run_world(train_all, world, kinds, recipe)
    return {kind: [rank[number] for rank in ranks] for number, kind in enumerate(kinds)}


@functools.cache
def a_plain_recipe() -> parity.Recipe:
    """Two layers, at a constant rate, as `numerics` has it."""
    model = parity.tiny_model(num_hidden_layers=2)
    rates = [numerics.OPTIMIZER.learning_rate] * STEPS
    return parity.Recipe(
        model, initial_weights(model), STEPS, 8, rates, dtype=torch.float32, float64_norms=False
    )


@functools.cache
def expected() -> parity.Outcome:
    torch.set_num_threads(1)
    return parity.plain_training(a_plain_recipe())


@pytest.fixture(scope="module")
def seen() -> dict[Kind, list[Seen]]:
    return outcomes(KINDS + HALF, a_plain_recipe())


def far(ours: parity.Outcome, expected: parity.Outcome) -> tuple[float, float, float]:
    """Largest differences of loss, gradient norm and final parameters."""
    assert ours.weights.keys() == expected.weights.keys()
    weights = {name: weight.view(expected.weights[name].shape) for name, weight in ours.weights.items()}
    return (
        max(abs(a - b) for a, b in zip(ours.losses, expected.losses, strict=True)),
        max(abs(a - b) for a, b in zip(ours.norms, expected.norms, strict=True)),
        max(float((weights[name] - expected.weights[name]).abs().max()) for name in expected.weights),
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_trains_as_a_plain_loop_does(seen: dict[Kind, list[Seen]], kind: Kind) -> None:
    """Documents of all lengths, so that ranks and micro-batches hold different numbers of tokens; every step clips."""
    assert min(expected().norms) > 1.0
    ranks = [rank.outcome for rank in seen[kind]]
    assert ranks[0].losses == ranks[1].losses
    loss, norm, parameters = far(ranks[0], expected())
    assert loss <= 5e-6
    assert norm <= 5e-6
    assert parameters <= 5e-5


@pytest.fixture(scope="module")
def native_in_half() -> numerics.Seen:
    setting = numerics.Setting("BF16", steps=STEPS, model=a_plain_recipe().model)
    found: numerics.Seen = run_world(numerics.train, 2, a_rung(shard=2), setting)[0]
    return found


@pytest.mark.parametrize("kind", HALF, ids=str)
def test_in_half_precision_it_trains_as_the_engine_native_does(
    seen: dict[Kind, list[Seen]], native_in_half: numerics.Seen, kind: Kind
) -> None:
    ours = seen[kind][0].outcome
    assert max(abs(a - b) for a, b in zip(ours.losses, native_in_half.losses, strict=True)) <= 1e-3
    assert max(abs(a - b) for a, b in zip(ours.norms, native_in_half.norms, strict=True)) <= 1e-2
    assert numerics.furthest(ours.weights, native_in_half.weights) <= 1e-2


def test_nothing_is_compiled(seen: dict[Kind, list[Seen]]) -> None:
    """All of the above ran without any compiler to be found, and left nothing where extensions are built."""
    ranks = [rank for kind in seen.values() for rank in kind]
    assert [rank.compilers for rank in ranks] == [[]] * len(ranks)
    assert [rank.built for rank in ranks] == [[]] * len(ranks)


def test_what_would_have_to_be_compiled_is_an_error_that_names_it() -> None:
    from deepspeed.ops.op_builder import CPUAdamBuilder

    from trainer.deepspeed_engine.library import NotCompiled  # loads DeepSpeed, whose builders follow

    with pytest.raises(NotCompiled, match="DeepSpeed asked to compile cpu_adam") as refused:
        CPUAdamBuilder().load()
    assert "Fix:" in str(refused.value)


def test_a_number_of_ranks_that_divides_nothing_and_padding_change_nothing() -> None:
    """Three ranks: gradients divided by 3, flat buffers with padding, and places in the batch that weigh nothing."""
    for kind, ranks in outcomes([Kind(2, world=3), Kind(3, world=3)], a_plain_recipe(), world=3).items():
        assert kind.rung().padding_sequences == 4
        assert far(ranks[0].outcome, expected())[0] <= 5e-6


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_other_families_and_heads_that_are_tied_train_the_same(family: str) -> None:
    model = parity.tiny_model(family, num_hidden_layers=2)
    recipe = a_plain_recipe()._replace(model=model, weights=initial_weights(model))
    measure = parity.plain_training(recipe)
    for ranks in outcomes([Kind(2), Kind(3)], recipe).values():
        loss, norm, _ = far(ranks[0].outcome, measure)
        assert loss <= 5e-6
        assert norm <= 5e-6 * max(measure.norms)


def test_without_clipping_nothing_is_clipped_and_one_process_can_offload() -> None:
    """DeepSpeed clips to 1.0 when nobody says anything."""
    recipe = a_plain_recipe()._replace(max_grad_norm=None)
    unclipped = parity.plain_training(recipe)
    assert max(unclipped.norms) > 1.0
    kinds = [Kind(2, "Optimizer", world=1), Kind(3, world=1)]
    for ranks in outcomes(kinds, recipe, world=1).values():
        assert max(far(ranks[0].outcome, unclipped)) <= 5e-5
