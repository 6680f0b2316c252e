from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import cuts
from tests.trainer.cuts import Cut
from tests.trainer.worlds import run_world

from trainer.checkpoint import durable, retention
from trainer.checkpoint.durable import Fenced, SaveFailed, write_fence
from trainer.checkpoint.manifest import (
    damaged_manifests,
    list_checkpoints,
    location_fresh,
    newest,
    read_manifest,
)
from trainer.checkpoint.restore import CheckpointDamaged, CheckpointMismatch, from_durable
from trainer.checkpoint.writer import HashingWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def saved(location: Path, *steps: int, **options: Any) -> dict[str, torch.Tensor]:
    tensors = cuts.state(0, Cut())
    for step in steps:
        cuts.save(location, tensors, step=step, **options)
    return tensors


def steps_at(location: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(location)]


def folders_at(location: Path) -> list[str]:
    return sorted(path.name for path in location.iterdir() if path.is_dir())


def assert_holds(location: Path, name: str, step: int) -> None:
    tensors = cuts.state(0, Cut())
    assert from_durable(location, name, tensors) == cuts.scalars(step)
    assert cuts.wrong(tensors, step) == []


def assert_unusable(location: Path, name: str, match: str) -> CheckpointDamaged:
    """It raises, and no tensor could be mistaken for a restored one."""
    tensors = cuts.state(0, Cut())
    with pytest.raises(CheckpointDamaged, match=match) as raised:
        from_durable(location, name, tensors)
    assert all(bool(tensor.isnan().all()) or not bool(tensor.any()) for tensor in tensors.values())
    return raised.value


def test_a_manifest_says_what_the_checkpoint_is(tmp_path: Path) -> None:
    saved(tmp_path, 7, epoch=3, parent="step-00000005.e0002", plan={"tensor": 2})
    manifest = read_manifest(tmp_path, "step-00000007.e0003")
    content = json.loads((tmp_path / manifest.name / "manifest.json").read_text())
    assert content["stateFormat"] == 2
    assert (content["step"], content["epoch"], content["tokens"]) == (7, 3, 700)
    assert content["dataPosition"] == {"samples": 84}
    assert content["schedule"] == {"updates": 7, "learningRate": 0.1}
    assert (content["parent"], content["runUid"]) == ("step-00000005.e0002", cuts.UID)
    assert (content["plan"], content["versions"]) == ({"tensor": 2}, {"torch": "x"})
    assert content["digest"] == manifest.digest
    assert set(content["files"]) == set(content["sums"]) == {"__0_0.distcp"}
    assert {item["name"] for item in content["items"]} == set(cuts.state(0, Cut()))


# Break it ----------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_tensor_data_is_never_restored(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    file = tmp_path / "step-00000002.e0001" / "__0_0.distcp"
    good = file.read_bytes()
    for at in random.Random(3).sample(range(len(good)), 25):
        flip(file, at)
        damaged = assert_unusable(tmp_path, "step-00000002.e0001", r"sha256 does not match")
        assert (damaged.checkpoint, damaged.file) == ("step-00000002.e0001", str(file))
        assert damaged.item in cuts.state(0, Cut())
        file.write_bytes(good)
    assert_holds(tmp_path, "step-00000002.e0001", 2)


def test_a_flipped_bit_in_the_manifest_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    file = tmp_path / "step-00000002.e0001" / "manifest.json"
    good = file.read_bytes()
    for at in random.Random(4).sample(range(len(good)), 25):
        flip(file, at)
        assert steps_at(tmp_path) == [1]
        assert damaged_manifests(tmp_path) == ["step-00000002.e0001"]
        assert_unusable(tmp_path, "step-00000002.e0001", "manifest")
        file.write_bytes(good)
    assert steps_at(tmp_path) == [1, 2]


def test_the_pickle_beside_the_manifest_is_never_read(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-00000001.e0001" / ".metadata").write_bytes(b"garbage")
    assert_holds(tmp_path, "step-00000001.e0001", 1)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_truncated_file_is_found_before_anything_is_filled(tmp_path: Path, keep: float) -> None:
    saved(tmp_path, 1)
    file = tmp_path / "step-00000001.e0001" / "__0_0.distcp"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    assert_unusable(tmp_path, "step-00000001.e0001", rf"{len(data)} were written")
    file.unlink()
    assert_unusable(tmp_path, "step-00000001.e0001", r"0 bytes, but")


def test_without_the_newest_manifest_the_older_checkpoint_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002.e0001" / "manifest.json").unlink()
    found = newest(tmp_path)
    assert found is not None and found.step == 1
    assert_holds(tmp_path, found.name, 1)
    assert_unusable(tmp_path, "step-00000002.e0001", "it is not there")


def test_a_location_that_lost_everything_is_not_fresh(tmp_path: Path) -> None:
    assert location_fresh(tmp_path / "never")
    (tmp_path / "step-00000001.e0001").mkdir()  # a first save that was killed
    assert location_fresh(tmp_path)
    saved(tmp_path, 1)
    assert not location_fresh(tmp_path)
    (tmp_path / "step-00000001.e0001" / "manifest.json").unlink()
    assert list_checkpoints(tmp_path) == []
    assert not location_fresh(tmp_path)
    (tmp_path / "committed").unlink()
    (tmp_path / "step-00000001.e0001" / "manifest.json").write_text("damaged")
    assert not location_fresh(tmp_path)


def test_a_checkpoint_of_another_model_is_a_configuration_error(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    wider = {"model.0.up.weight": torch.zeros(14, 10)}
    with pytest.raises(
        CheckpointMismatch, match=r"model.0.up.weight is float32 \[14, 9\] there.*wants float32 \[14, 10\]"
    ):
        from_durable(tmp_path, "step-00000001.e0001", wider)
    with pytest.raises(CheckpointMismatch, match="wants float64"):
        from_durable(tmp_path, "step-00000001.e0001", {"model.0.up.weight": torch.zeros(14, 9).double()})
    with pytest.raises(CheckpointDamaged, match=r"model.9: it is in none of the files"):
        from_durable(tmp_path, "step-00000001.e0001", {"model.9": torch.zeros(1)})


# Kill it ----------------------------------------------------------------


def killed_after(context: Any, target: Callable[..., None], arguments: tuple[Any, ...], delay: float) -> None:
    process = context.Process(target=target, args=arguments)
    process.start()
    location: Path = arguments[2]
    before = len(folders_at(location))
    deadline = time.monotonic() + 60
    while len(folders_at(location)) == before and time.monotonic() < deadline and process.is_alive():
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_kill_at_any_instant_of_a_save_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    location = tmp_path / "c"
    saved(location, 1)
    context = multiprocessing.get_context("fork")
    random_numbers = random.Random(8)
    reached, window = 1, 0.03
    for _ in range(20):
        delay = random_numbers.uniform(0, window)
        killed_after(context, cuts.save_until_killed, (0, Cut(), location, reached), delay)
        found = newest(location)
        assert found is not None and found.step >= reached
        assert damaged_manifests(location) == []
        for checkpoint in list_checkpoints(location):
            assert_holds(location, checkpoint.name, checkpoint.step)
        window *= 1.5 if found.step == reached else 0.8  # about half of the kills come within the first save
        reached = found.step
    assert reached > 3
    saved(location, reached + 1)
    # What the kills left is gone.
    assert folders_at(location) == [checkpoint.name for checkpoint in list_checkpoints(location)]


STAGES = {
    "files": (HashingWriter, "write_data"),
    "metadata": (HashingWriter, "finish"),
    "before the manifest": (durable, "commit"),
    "before removing": (retention, "discard"),
}


def die_at(rank: int, stage: str, after: bool, location: Path) -> None:
    owner, method = STAGES[stage]
    original = getattr(owner, method)

    def killed(*arguments: Any, **named: Any) -> Any:
        if after:
            original(*arguments, **named)
        cuts.die()

    setattr(owner, method, killed)
    cuts.save(location, cuts.state(0, Cut()), step=3, keep_last=1)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_between_the_stages_of_a_save_leaves_a_whole_checkpoint(
    tmp_path: Path, stage: str, after: bool
) -> None:
    saved(tmp_path, 1, 2)
    process = multiprocessing.get_context("fork").Process(target=die_at, args=(0, stage, after, tmp_path))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    committed = stage == "before removing" or (stage == "before the manifest" and after)
    found = newest(tmp_path)
    assert found is not None and found.step == (3 if committed else 2)
    for checkpoint in list_checkpoints(tmp_path):
        assert_holds(tmp_path, checkpoint.name, checkpoint.step)
    saved(tmp_path, 3, 4, keep_last=2)
    assert steps_at(tmp_path) == [3, 4]
    assert folders_at(tmp_path) == ["step-00000003.e0001", "step-00000004.e0001"]
    assert_holds(tmp_path, "step-00000004.e0001", 4)


def save_and_lose_a_rank(rank: int, location: Path) -> str:
    tensors = cuts.state(rank, Cut(shard=2))
    cuts.save(location, tensors, step=1)
    if rank == 1:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "__1_0.distcp")

        HashingWriter.write_data = full  # type: ignore[method-assign]
    try:
        cuts.save(location, tensors, step=2)
    except SaveFailed as error:
        return f"{error.errno} {error}"
    return "saved"


def test_one_rank_without_space_fails_the_save_on_every_rank(tmp_path: Path) -> None:
    said = run_world(save_and_lose_a_rank, 2, tmp_path)
    assert said[0] == said[1]
    assert said[0].startswith(
        f"{errno.ENOSPC} checkpoint step-00000002.e0001 was not saved: rank 1: __1_0.distcp: No space"
    )
    assert folders_at(tmp_path) == ["step-00000001.e0001"]


def save_and_kill_a_rank(rank: int, location: Path) -> None:
    tensors = cuts.state(rank, Cut(shard=2))
    cuts.save(location, tensors, step=1)
    if rank == 1:
        HashingWriter.write_data = lambda *_: cuts.die()  # type: ignore[method-assign]
    cuts.save(location, tensors, step=2)


def test_a_rank_killed_during_a_save_leaves_no_manifest(tmp_path: Path) -> None:
    with pytest.raises((EOFError, AssertionError)):  # it is gone, and the other one cannot go on
        run_world(save_and_kill_a_rank, 2, tmp_path)
    assert steps_at(tmp_path) == [1]
    assert_holds(tmp_path, "step-00000001.e0001", 1)


# Who may write ----------------------------------------------------------------


def test_a_read_only_location_is_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(SaveFailed, match="Read-only file system") as raised:
        saved(tmp_path, 1)
    assert raised.value.errno == errno.EROFS


def test_a_fenced_epoch_commits_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1, epoch=4)
    write_fence(tmp_path, 6)
    write_fence(tmp_path, 6)
    with pytest.raises(Fenced, match="epoch 5 is below the fence of epoch 6"):
        saved(tmp_path, 2, epoch=5)
    saved(tmp_path, 2, epoch=6)
    assert [checkpoint.epoch for checkpoint in list_checkpoints(tmp_path)] == [4, 6]


@pytest.mark.parametrize("instant", ["before the commit", "during the commit"])
def test_a_fence_written_during_a_save_stops_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: str
) -> None:
    saved(tmp_path, 1, epoch=4)
    if instant == "before the commit":
        original: Any = HashingWriter.finish
        monkeypatch.setattr(
            HashingWriter, "finish", lambda *a, **k: (original(*a, **k), write_fence(tmp_path, 6))
        )
    else:
        original = durable.commit
        monkeypatch.setattr(durable, "commit", lambda *a: (original(*a), write_fence(tmp_path, 6))[0])
    with pytest.raises(Fenced):
        saved(tmp_path, 2, epoch=5)
    assert steps_at(tmp_path) == [1]


def test_saving_a_committed_step_again_leaves_it(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    before = (tmp_path / "step-00000001.e0001" / "manifest.json").stat()
    saved(tmp_path, 1)
    assert (tmp_path / "step-00000001.e0001" / "manifest.json").stat() == before
    with pytest.raises(SaveFailed, match="made by run uid-1"):
        saved(tmp_path, 1, run_uid="uid-2")


def test_a_leftover_folder_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000002.e0001"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"half")
    (folder / ".metadata").write_bytes(b"old")
    (folder / "__7_0.distcp").write_bytes(b"of a larger world")
    saved(tmp_path, 2)
    assert sorted(path.name for path in folder.iterdir()) == [".metadata", "__0_0.distcp", "manifest.json"]
    assert_holds(tmp_path, folder.name, 2)


# What is kept ----------------------------------------------------------------


def test_retention_counts_manifests_and_never_folders(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, keep_last=None)
    (tmp_path / "step-00000002.e0001" / "manifest.json").unlink()
    saved(tmp_path, 4, keep_last=2)
    assert steps_at(tmp_path) == [3, 4]
    assert folders_at(tmp_path) == ["step-00000003.e0001", "step-00000004.e0001"]


def test_retention_keeps_the_newest_and_the_pinned(tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "step-00000001.e0001").touch()
    saved(tmp_path, 1, 2, 3, keep_last=1)
    assert steps_at(tmp_path) == [1, 3]
    assert retention.retain(tmp_path, 0) == []


def test_a_newer_epoch_at_a_lower_step_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 9, epoch=1)
    saved(tmp_path, 5, epoch=2, keep_last=1)
    assert [(c.epoch, c.step) for c in list_checkpoints(tmp_path)] == [(2, 5)]


def test_a_failed_removal_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: Any) -> list[str]:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(durable, "retain", busy)
    saved(tmp_path, 1)
    assert steps_at(tmp_path) == [1]
    assert "were not removed" in caplog.text
