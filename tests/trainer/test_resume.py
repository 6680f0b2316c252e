"""Resuming is a no-op: a run that stops and goes on from a checkpoint meets the uninterrupted one bit by bit, with
dropout on. Each piece of the state is then left out in turn, and each must be missed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer.epochs import Ended, Folder, a_spec

from trainer.checkpoint.manifest import newest, read_manifest
from trainer.checkpoint.restore import from_durable
from trainingrun.protocol.records import Restore, RestoreSource

STEPS = 8
LAYOUTS = {
    "one rank": {},
    "two tensor ranks": {"tensor": 2},
    "two shards": {"shard": 2},
    "two stages": {"pipeline": 2},
}


def a_run(folder: Path, layout: dict[str, int], memory: int = 0) -> Folder:
    spec = a_spec(folder, steps=STEPS, precision="FP32")
    spec["model"]["config"]["attention_dropout"] = 0.2
    spec["checkpoint"]["memory"] = {"intervalSteps": memory}
    return Folder(folder, spec)


def done(ended: Ended) -> float:
    assert not ended.errors, ended.errors
    assert ended.results[0] is not None
    assert (ended.results[0].outcome, ended.results[0].step) == ("Done", STEPS)
    assert ended.results[0].progress is not None
    return ended.results[0].progress.loss


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of the last checkpoint."""
    found = newest(folder / "checkpoints")
    assert found is not None
    assert found.step == STEPS
    items = read_manifest(folder / "checkpoints", found.name).items
    tensors = {item.name: torch.empty(item.shape, dtype=getattr(torch, item.dtype)) for item in items}
    from_durable(folder / "checkpoints", found.name, tensors)
    return tensors


def resumed(folder: Path, layout: dict[str, int], at: int, first: Callable[[], None] | None = None) -> float:
    run = a_run(folder, layout)
    paused = run.run(1, pause_after=at, **layout)
    assert not paused.errors, paused.errors
    found = newest(folder / "checkpoints")
    assert found is not None
    assert found.step == at
    restore = Restore(RestoreSource.DURABLE, at, found.epoch, found.name)
    return done(run.run(2, restore=restore, first=first, **layout))


def differ(one: Path, other: Path) -> list[str]:
    ours, theirs = final_state(one), final_state(other)
    assert set(ours) == set(theirs)
    return [name for name in theirs if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, float]]:
    made: dict[str, tuple[Path, float]] = {}

    def run(layout: str) -> tuple[Path, float]:
        if layout not in made:
            folder = tmp_path_factory.mktemp("straight")
            made[layout] = folder, done(a_run(folder, LAYOUTS[layout]).run(1, **LAYOUTS[layout]))
        return made[layout]

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_meets_the_uninterrupted_one_bit_by_bit(
    straight: Callable[[str], tuple[Path, float]], tmp_path: Path, layout: str
) -> None:
    folder, loss = straight(layout)
    assert resumed(tmp_path, LAYOUTS[layout], at=3) == loss
    assert differ(tmp_path, folder) == []
    ours, theirs = (load_file(one / "model" / "model.safetensors") for one in (tmp_path, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_dropout_is_on_or_the_test_would_prove_little(
    straight: Callable[[str], tuple[Path, float]], tmp_path: Path
) -> None:
    run = a_run(tmp_path, {})
    run.spec["model"]["config"]["attention_dropout"] = 0.0
    assert done(run.run(1)) != straight("one rank")[1]


# What a restore forgets, in the rank, after everything was restored ----------------------------------------------


def _after_restoring(change: Callable[[Any], None]) -> None:
    from trainer import loop

    original = loop.restore

    def restore(run: Any) -> None:
        original(run)
        change(run)

    loop.restore = restore


def forget_weights() -> None:
    def change(run: Any) -> None:
        from trainer.initial import fill_initial

        fill_initial(run.state.optimizer.parameters, run.model, seed=run.config.training.seed)
        run.state.filled(initial=False)

    _after_restoring(change)


def _forget_moment(kind: str) -> None:
    def change(run: Any) -> None:
        for name, moment in run.state.optimizer.moments().items():
            if name.endswith(kind):
                moment.zero_()

    _after_restoring(change)


def forget_first_moments() -> None:
    _forget_moment(".exp_avg")


def forget_second_moments() -> None:
    _forget_moment(".exp_avg_sq")


def forget_one_moment_of_one_parameter() -> None:
    def change(run: Any) -> None:
        moments = run.state.optimizer.moments()
        moments[next(name for name in moments if name.endswith("norm.weight.exp_avg"))].zero_()

    _after_restoring(change)


def forget_updates() -> None:
    _after_restoring(lambda run: setattr(run.state.optimizer, "updates", 0))


def forget_the_random_numbers() -> None:
    """As if each start of the ranks counted its steps anew."""
    from trainer.step import StepRunner

    original = StepRunner.run

    def run(self: Any, step: int, *arguments: Any, **named: Any) -> Any:
        return original(self, step - 3, *arguments, **named)

    StepRunner.run = run  # type: ignore[method-assign]


def forget_the_position_in_the_data() -> None:
    from trainer import loop

    original = loop.restore

    def restore(run: Any) -> None:
        original(run)
        step_of = run.reader.step
        run.reader.step = lambda step: step_of(step - 3)

    loop.restore = restore


def forget_the_schedule() -> None:
    from trainer.schedule import Schedule

    original = Schedule.learning_rate
    Schedule.learning_rate = lambda self, step: original(self, step - 3)  # type: ignore[method-assign]


FORGOTTEN = [
    forget_weights,
    forget_first_moments,
    forget_second_moments,
    forget_one_moment_of_one_parameter,
    forget_updates,
    forget_the_random_numbers,
    forget_the_position_in_the_data,
    forget_the_schedule,
]


@pytest.mark.parametrize("forget", FORGOTTEN)
def test_each_piece_of_the_state_is_missed_when_it_is_left_out(
    straight: Callable[[str], tuple[Path, float]], tmp_path: Path, forget: Callable[[], None]
) -> None:
    folder, _ = straight("one rank")
    resumed(tmp_path, {}, at=3, first=forget)
    assert differ(tmp_path, folder) != []
