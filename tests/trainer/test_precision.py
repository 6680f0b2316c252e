"""Half precision: masters, sums and reductions in FP32 under every axis, and the loss scale of FP16."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.numerics import Seen, Setting, furthest, train
from tests.trainer.worlds import run_world
from torch import nn

from trainer.config import OptimizerConfig
from trainer.errors import TrainingDiverged
from trainer.mesh import build_axes
from trainer.optim import Optimizer
from trainer.parameters import Parameter
from trainer.precision import LossScale
from trainer.state import TrainingState
from trainer.step import StepResult, StepRunner, Votes

HALVES = ("BF16", "FP16")
# The same micro-batches on other ranks: only the order of FP32 sums differs.
DATA_AND_PIPELINE = [{"replicate": 2}, {"shard": 2}, {"pipeline": 2}, {"pipeline": 2, "shard": 2}]


@functools.cache
def alone(precision: str, steps: int) -> Seen:
    return train(0, layouts.a_rung(micro_batch=2), Setting(precision, steps=steps))


def on(precision: str, steps: int, **axes: Any) -> Seen:
    rung = layouts.a_rung(micro_batch=2, **axes)
    return run_world(train, rung.world, rung, Setting(precision, steps=steps))[-1]


def test_half_precision_trains_nearly_as_full_precision_does() -> None:
    full = alone("FP32", 10)
    assert full.losses[-1] < full.losses[0] - 0.5
    for precision in HALVES:
        half = alone(precision, 10)
        assert all(half.updates)
        differences = [abs(a - b) for a, b in zip(half.losses, full.losses, strict=True)]
        assert 0 < max(differences) < 0.03, (precision, differences)


def test_what_is_kept_is_full_precision_and_what_computes_is_half() -> None:
    for precision, compute in (("BF16", torch.bfloat16), ("FP16", torch.float16)):
        seen = alone(precision, 10)
        assert seen.dtypes == {"live": {compute}, "kept": {torch.float32}, "computed": {compute}}
    assert on("BF16", 1, shard=2).dtypes["kept"] == {torch.float32}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("axes", DATA_AND_PIPELINE, ids=str)
def test_gradients_are_added_up_in_full_precision_over_ranks_and_micro_batches(
    precision: str, axes: dict[str, int]
) -> None:
    """A sum in half precision would be wrong in the third digit."""
    one, many = alone(precision, 1), on(precision, 1, **axes)
    assert many.losses == pytest.approx(one.losses, rel=1e-6)
    assert many.norms == pytest.approx(one.norms, rel=1e-5)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("axes", [*DATA_AND_PIPELINE, {"tensor": 2}, {"tensor": 2, "shard": 2}], ids=str)
def test_every_axis_trains_alike_in_half_precision(precision: str, axes: dict[str, int]) -> None:
    one, many = alone(precision, 10), on(precision, 10, **axes)
    assert max(abs(a - b) for a, b in zip(many.losses, one.losses, strict=True)) < 0.02


def test_changes_too_small_for_half_precision_are_not_lost() -> None:
    live = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    parameter = Parameter("x.up_proj.weight", live.detach(), live).with_master(torch.float32)
    parameter.cut.fill_(1.0)
    config = OptimizerConfig(1e-4, (0.9, 0.95), 1e-8, 0.0, None)
    optimizer = Optimizer([parameter], config)
    for _ in range(100):
        optimizer.update([torch.ones(2, 2)], scale=1.0, learning_rate=1e-4)
    assert torch.allclose(parameter.cut, torch.full((2, 2), 0.99), atol=1e-5)
    assert torch.equal(live, parameter.cut.to(torch.bfloat16))
    assert bool((live != 1.0).all())  # 1 - 1e-4 is 1 in bfloat16: each step alone would be lost


def test_gradients_of_many_micro_batches_are_added_up_in_full_precision() -> None:
    live = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    parameter = Parameter("x.up_proj.weight", live.detach(), live).with_master(torch.float32)
    for gradient in [1.0, *[2.0**-9] * 512]:
        (live * gradient).sum().backward()
    assert live.grad is None
    total = parameter.take_gradient()
    assert total is not None
    assert (float(total), total.dtype) == (2.0, torch.float32)  # in bfloat16 the sum stays 1
    assert parameter.take_gradient() is None


class LeavesGradients:
    """Stands for a model that leaves this gradient, times the weight that it is given."""

    def __init__(self, parameter: Parameter, gradient: float, loss: float = 1.0) -> None:
        self.parameter, self.gradient, self.loss = parameter, gradient, loss

    def run(self, batches: Any, *, weight: float) -> tuple[float, float]:
        self.parameter.live.grad = torch.full_like(self.parameter.live, self.gradient * weight)
        return self.loss * weight, 0.0


def a_state() -> TrainingState:
    live = nn.Parameter(torch.ones(2))
    config = OptimizerConfig(0.1, (0.9, 0.95), 1e-8, 0.0, None)
    optimizer = Optimizer([Parameter("norm.weight", live.detach(), live)], config)
    return TrainingState(optimizer, scale=LossScale(on=True))


def step(state: TrainingState, rank: int, world: int, gradient: float, loss: float = 1.0) -> StepResult:
    axes = build_axes(layouts.a_rung(replicate=world), rank)
    executor = LeavesGradients(state.optimizer.parameters[0], gradient, loss)
    runner = StepRunner(executor, state.optimizer, axes, max_grad_norm=None, seed=0, scale=state.scale)  # type: ignore[arg-type]
    labels = torch.zeros(1, 2, dtype=torch.int64)
    batch = parity.Batch(labels, labels, labels, labels)
    result = runner.run(state.step + 1, [batch], learning_rate=0.1, votes=Votes())
    state.advance(result, learning_rate=0.1, samples=1)
    return result


def overflow_then_go_on(rank: int, world: int) -> tuple[list[Any], list[Any]]:
    """The last rank's gradient overflows in the first step only."""
    state = a_state()
    seen = []
    for gradient in (math.inf if rank == world - 1 else 1.0, 1.0):
        result = step(state, rank, world, gradient)
        seen.append((result.updated, result.overflowed, state.scale.value, state.step, state.samples))
        seen.append(
            (state.schedule_step, state.optimizer.updates, state.optimizer.parameters[0].cut.tolist())
        )
    return seen[:2], seen[2:]


@pytest.mark.parametrize("world", [1, 2])
def test_an_overflow_leaves_the_weights_halves_the_scale_and_the_data_goes_on(world: int) -> None:
    """The overflow of one rank is everybody's. The learning rate waits for the step that was skipped."""
    ranks = run_world(overflow_then_go_on, world, world) if world > 1 else [overflow_then_go_on(0, 1)]
    for (skipped, weights), (updated, after) in ranks:
        assert skipped == (False, True, 32768.0, 1, 1)
        assert weights == (1, 0, [1.0, 1.0])
        assert updated == (True, False, 32768.0, 2, 2)
        assert after[:2] == (2, 1)
        assert after[2] == pytest.approx([0.9, 0.9])


def test_the_loss_and_the_norm_are_told_without_the_scale() -> None:
    result = step(a_state(), 0, 1, gradient=2.0, loss=3.0)
    # two tokens weigh half each
    assert (result.loss, result.gradient_norm) == (1.5, pytest.approx(math.sqrt(2)))


def test_the_scale_doubles_after_many_good_steps_and_never_falls_below_one() -> None:
    scale = LossScale(on=True)
    for _ in range(LossScale.GROWTH_STEPS):
        scale.passed()
    assert scale.value == 131072.0
    for _ in range(40):
        scale.overflowed()
    assert scale.value == 1.0
    assert scale.exhausted


def test_an_overflow_that_no_scale_cures_is_an_error() -> None:
    state = a_state()
    state.scale.value = 1.0
    with pytest.raises(TrainingDiverged, match="precision BF16"):
        step(state, 0, 1, gradient=math.inf)
    with pytest.raises(TrainingDiverged, match="loss nan"):
        step(a_state(), 0, 1, gradient=1.0, loss=math.nan)


def test_the_scale_and_the_skipped_steps_are_saved_and_restored() -> None:
    state, restored = a_state(), a_state()
    step(state, 0, 1, gradient=math.inf)
    step(state, 0, 1, gradient=1.0)
    restored.load_scalars(state.scalars())
    assert restored.scalars() == state.scalars()
    assert (restored.skipped, restored.schedule_step, restored.scale.value) == (1, 2, 32768.0)


def test_other_precisions_have_no_scale() -> None:
    scale = LossScale(on=False)
    scale.passed()
    assert (scale.value, scale.scalars()) == (1.0, {})


def test_weights_are_the_same_on_every_rank_after_training_in_half_precision() -> None:
    rung = layouts.a_rung(micro_batch=2, tensor=2, replicate=2)
    ranks = run_world(train, 4, rung, Setting("BF16", steps=3))
    assert all(furthest(seen.weights, ranks[0].weights) == 0.0 for seen in ranks)
