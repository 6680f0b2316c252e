"""Durable checkpoints are written while training goes on: what the step waits for, and what may not leak into them."""

from __future__ import annotations

import errno
import functools
import json
import time
from pathlib import Path
from typing import Any

import torch
from tests.trainer import cuts
from tests.trainer.cuts import Cut
from tests.trainer.epochs import Ended, Folder, a_spec
from tests.trainer.worlds import run_world

from trainer.checkpoint import durable, manifest
from trainer.checkpoint.manifest import list_checkpoints, read_manifest
from trainer.checkpoint.restore import from_durable
from trainer.checkpoint.staging import Staging
from trainer.checkpoint.writer import HashingWriter

STEPS = 8
SLOW_SECONDS = 1.0

# Of ranks ----------------------------------------------------------------


def save_a_copy_while_the_state_moves_on(rank: int, cut: Cut, location: Path) -> list[str]:
    tensors = cuts.state(rank, cut)
    staging = Staging()
    saved = []
    for step in (1, 2):
        cuts.fill(tensors, step)
        copies = staging.copy(tensors)
        cuts.fill(tensors, step + 10)
        saved.append(
            durable.save(
                location,
                step=step,
                epoch=1,
                tensors=copies,
                scalars=cuts.scalars(step),
                parent="",
                run_uid=cuts.UID,
                keep_last=None,
                plan={},
                versions={},
            )
        )
    return saved


def slow() -> None:
    original = HashingWriter.write_data

    def write_data(*arguments: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return original(*arguments)

    HashingWriter.write_data = write_data  # type: ignore[method-assign]


def full_at_first(times: int) -> None:
    original = HashingWriter.write_data
    failures = iter(range(times))

    def write_data(*arguments: Any) -> Any:
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    HashingWriter.write_data = write_data  # type: ignore[method-assign]


def slow_and_watched(folder: Path) -> None:
    """Whoever saves while another save is going on leaves a file."""
    slow()
    original = durable.save
    mark = folder / "saving"

    def save(*arguments: Any, **named: Any) -> str:
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            (folder / "two-at-once").touch()
        name = original(*arguments, **named)
        mark.unlink()
        return name

    durable.save = save


# Tests ----------------------------------------------------------------


def metrics(run: Folder, epoch: int = 1) -> list[dict[str, Any]]:
    path = run.folder / "node-0" / "logs" / f"metrics-e{epoch:04d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def a_run(folder: Path, *, steps: int = STEPS, every: int | None, memory: int = 0) -> Folder:
    spec = a_spec(folder, steps=steps)
    spec["checkpoint"]["memory"] = {"intervalSteps": memory}
    spec["checkpoint"]["durable"] = {"intervalSeconds": None, "intervalSteps": every, "keepLast": 50}
    return Folder(folder, spec)


def outcome(ended: Ended) -> tuple[str, int]:
    assert not ended.errors, ended.errors
    result = ended.results[0]
    assert result is not None
    return result.outcome, result.step


def test_what_happens_to_the_state_after_the_copy_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    for world, cut in ((1, Cut()), (2, Cut(shard=2)), (4, Cut(tensor=2, shard=2))):
        location = tmp_path / str(world)
        names = run_world(save_a_copy_while_the_state_moves_on, world, cut, location)[0]
        for step, name in enumerate(names, 1):
            tensors = cuts.state(0, Cut())
            from_durable(location, name, tensors)
            assert cuts.wrong(tensors, step) == []


def test_a_step_waits_for_the_copy_only_and_the_checkpoint_is_that_of_its_step(tmp_path: Path) -> None:
    run = a_run(tmp_path / "slow", every=2)
    assert outcome(run.run(1, tensor=2, first=slow)) == ("Done", STEPS)
    lines = metrics(run)
    stalls = {line["step"]: line["saveStallSeconds"] for line in lines if "saveStallSeconds" in line}
    took = {line["step"]: line["saveSeconds"] for line in lines if "saveSeconds" in line}
    assert min(took.values()) >= SLOW_SECONDS
    assert max(stalls.values()) < SLOW_SECONDS / 4
    assert 2 in took
    known = next(
        number for number, line in enumerate(lines) if line.get("durable", "").startswith("step-00000002")
    )
    steps_before = [line["step"] for line in lines[:known] if "loss" in line]
    assert steps_before[-1] > 2, "training went on while it was written"

    # The same step of a run that did nothing else meanwhile.
    quiet = a_run(tmp_path / "quiet", every=None)
    assert outcome(quiet.run(1, tensor=2, pause_after=2)) == ("Paused", 2)
    states = []
    for folder in (run.folder, quiet.folder):
        name = "step-00000002.e0001"
        items = read_manifest(folder / "checkpoints", name).items
        tensors = {item.name: torch.empty(item.shape, dtype=torch.float64) for item in items}
        scalars = from_durable(folder / "checkpoints", name, tensors)
        states.append((tensors, scalars))
    (ours, scalars), (theirs, expected) = states
    assert scalars == expected
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_there_are_never_two_saves_at_once_and_the_last_step_is_there(tmp_path: Path) -> None:
    run = a_run(tmp_path, steps=STEPS, every=1)
    assert outcome(run.run(1, first=functools.partial(slow_and_watched, tmp_path))) == ("Done", STEPS)
    assert not (tmp_path / "two-at-once").exists()
    steps = [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "checkpoints")]
    assert steps[0] == 1
    assert steps[-1] == STEPS
    assert len(steps) < STEPS, "some were made up for by one"


def test_a_save_that_fails_in_the_background_is_told_and_training_goes_on(tmp_path: Path) -> None:
    interval = 4
    run = a_run(tmp_path, steps=2 * interval, every=interval)
    said: list[str] = []
    mailbox = tmp_path / "node-0" / "mailbox-1" / "activity.json"
    ended = run.run(
        1,
        first=functools.partial(full_at_first, 1),
        when=lambda *_: said.append(json.loads(mailbox.read_text())["text"]),
    )
    assert outcome(ended) == ("Done", 2 * interval)
    [failed] = [line for line in metrics(run) if "saveFailed" in line]
    assert interval <= failed["step"] <= 2 * interval
    assert "No space left on device" in failed["saveFailed"]
    assert "saving failed (rank 0: No space left on device); training goes on" in said
    found = manifest.newest(tmp_path / "checkpoints")
    assert found is not None
    assert found.step == 2 * interval


def test_a_pause_waits_for_the_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    run = a_run(tmp_path, every=2, memory=1)
    assert outcome(run.run(1, first=slow, pause_after=3)) == ("Paused", 3)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "checkpoints")] == [2]
