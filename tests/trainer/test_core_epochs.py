"""Whole epochs of real ranks: pause, resume at another size, finish, and how failures end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.trainer.epochs import Ended, Folder, a_spec

from trainer.checkpoint import manifest
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import Restore, RestoreSource

STEPS = 8


def done(ended: Ended) -> Progress:
    assert not ended.errors, ended.errors
    result = ended.results[0]
    assert result is not None
    assert (result.outcome, result.step, result.final) == ("Done", STEPS, True)
    assert result.progress is not None
    return result.progress


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Progress]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, done(Folder(folder, a_spec(folder, steps=STEPS)).run(1))


def test_a_single_rank_finishes_with_a_checkpoint_and_an_export(uninterrupted: tuple[Path, Progress]) -> None:
    folder, progress = uninterrupted
    newest = manifest.newest(folder / "checkpoints")
    assert newest is not None
    assert newest.step == STEPS
    assert (folder / "model" / "model.safetensors").exists()
    summary = progress.summary
    assert (summary.first_step, summary.last_step, summary.durable) == (1, STEPS, newest.name)
    assert summary.last_step_at >= summary.first_step_at > 0 < summary.step_seconds
    assert 0 < summary.peak_bytes < 2 << 30


def test_a_run_that_pauses_and_changes_size_meets_the_uninterrupted_one(
    tmp_path: Path, uninterrupted: tuple[Path, Progress]
) -> None:
    """Two nodes pause, one goes on from memory at another layout, is saved, and a third layout finishes."""
    run = Folder(tmp_path, a_spec(tmp_path, steps=STEPS))
    first = run.run(1, nodes=2, tensor=2, replicate=2, pause_after=3)
    assert not first.errors
    assert [(result.outcome, result.step) for result in first.results if result] == [("Paused", 3)] * 2

    memory = Restore(RestoreSource.MEMORY, step=3, epoch=1, layout=(1, 1, 2), holders=(0,))
    run.spec["checkpoint"]["durable"]["intervalSteps"] = 6
    second = run.run(2, shard=2, restore=memory, restore_files=run.held(1, 3, nodes=1), pause_after=6)
    assert not second.errors
    assert second.results[0].outcome == "Paused"
    saved = manifest.newest(tmp_path / "checkpoints")
    assert saved is not None
    assert (saved.step, saved.epoch) == (6, 2)

    durable = Restore(RestoreSource.DURABLE, step=saved.step, epoch=2, manifest=saved.name)
    progress = done(run.run(3, pipeline=2, restore=durable))
    folder, expected = uninterrupted
    assert progress.loss == pytest.approx(expected.loss, abs=1e-9)
    assert progress.tokens == expected.tokens
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (tmp_path, folder))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-8

    again = run.run(4, restore=Restore(RestoreSource.DURABLE, STEPS, 3, manifest_of_last_step(tmp_path)))
    assert done(again).step == STEPS
    assert again.results[0].export == run.spec["output"]["uri"]
    assert len(list((tmp_path / "checkpoints").glob(f"step-{STEPS:08d}.*"))) == 1


def manifest_of_last_step(folder: Path) -> str:
    newest = manifest.newest(folder / "checkpoints")
    assert newest is not None
    assert newest.step == STEPS
    return newest.name


def test_a_killed_rank_ends_its_peers_and_the_snapshot_is_whole(tmp_path: Path) -> None:
    run = Folder(tmp_path, a_spec(tmp_path, steps=500))

    def kill(progress: Progress, processes: list[Any]) -> None:
        if progress.step >= 3:
            processes[1].kill()

    ended = run.run(1, tensor=2, when=kill)
    assert -9 in ended.exit_codes
    step = ended.progress.step
    steps = [s for s in range(1, step + 2) if len(run.held(1, s, nodes=1)) == 2]
    assert steps, "no step is held by both ranks"
    restore = Restore(RestoreSource.MEMORY, steps[-1], 1, layout=(1, 1, 2), holders=(0,))
    files = run.held(1, steps[-1], nodes=1)
    again = run.run(2, tensor=2, restore=restore, restore_files=files, pause_after=1)
    assert not again.errors
    assert again.results[0].step == steps[-1] + 1


def test_a_damaged_restore_point_is_named_and_nothing_trains(
    tmp_path: Path, uninterrupted: tuple[Path, Progress]
) -> None:
    run = Folder(tmp_path, a_spec(tmp_path, steps=STEPS))
    restore = Restore(RestoreSource.DURABLE, 5, 1, "step-00000005.e0001")
    ended = run.run(2, restore=restore)
    assert ended.exit_codes == [ExitCode.CHECKPOINT_DAMAGED]
    assert ended.damaged == "step-00000005.e0001"
    assert ended.progress is None


def test_a_configuration_that_cannot_work_ends_with_its_field_value_and_fix(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    spec["model"]["config"]["num_key_value_heads"] = 1
    ended = Folder(tmp_path, spec).run(1, tensor=2)
    assert ExitCode.BAD_CONFIGURATION in ended.exit_codes
    message = ended.errors[0].message
    assert "spec.parallelism.axes.tensor: 2" in message
    assert "nearest that fits is tensor 1" in message


def test_an_epoch_without_a_common_member_writes_its_fence_first(tmp_path: Path) -> None:
    run = Folder(tmp_path, a_spec(tmp_path, steps=STEPS))
    done(run.run(7, shares_member=False))
    assert (tmp_path / "checkpoints" / "fence-e0007").exists()
