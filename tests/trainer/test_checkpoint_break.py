"""Checkpoints that are cut off, bent or written by two: always the newest whole one, never a damaged tensor."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.trainer import cuts
from tests.trainer.cuts import Cut
from tests.trainer.epochs import Folder, a_spec

from trainer.agent.parts import real_parts
from trainer.checkpoint import durable
from trainer.checkpoint.durable import Fenced, SaveFailed
from trainer.checkpoint.manifest import damaged_manifests, list_checkpoints, newest
from trainer.checkpoint.restore import CheckpointDamaged, from_durable
from trainingrun.protocol.records import Restore, RestoreSource

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

NAME = "step-00000002.e0001"
KILLS = int(os.environ.get("TRAININGRUN_TEST_KILLS", "8"))  # 50 before a release


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with steps 1 and 2. Tests work on copies."""
    location = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        cuts.save(location, cuts.state(0, Cut()), step=step)
    return location


def newest_whole(location: Path) -> int:
    """As a run finds it: the newest first, each that fails its checksums passed over. Its state must be right."""
    for checkpoint in reversed(list_checkpoints(location)):
        tensors = cuts.state(0, Cut())
        try:
            scalars = from_durable(location, checkpoint.name, tensors)
        except CheckpointDamaged as error:
            assert error.checkpoint == checkpoint.name
            assert all(bool(tensor.isnan().all()) or not bool(tensor.any()) for tensor in tensors.values())
            continue
        assert scalars == cuts.scalars(checkpoint.step)
        assert cuts.wrong(tensors, checkpoint.step) == []
        return checkpoint.step
    raise AssertionError("nothing whole is left")


FILES = ("manifest.json", "__0_0.distcp", ".metadata")


@pytest.mark.parametrize("file", FILES)
def test_any_flipped_bit_costs_at_most_that_checkpoint(two: Path, tmp_path: Path, file: str) -> None:
    dice = random.Random(31)
    location = tmp_path / "c"
    shutil.copytree(two, location)
    path = location / NAME / file
    good = path.read_bytes()
    places = {0, len(good) - 1, *(dice.randrange(len(good)) for _ in range(60))}
    for at in sorted(places):
        data = bytearray(good)
        data[at] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        assert newest_whole(location) == (2 if file == ".metadata" else 1), f"a bit of byte {at}"
    path.write_bytes(good)
    assert newest_whole(location) == 2


@pytest.mark.parametrize("file", FILES[:2])
def test_any_length_but_its_own_costs_at_most_that_checkpoint(two: Path, tmp_path: Path, file: str) -> None:
    dice = random.Random(32)
    location = tmp_path / "c"
    shutil.copytree(two, location)
    path = location / NAME / file
    good = path.read_bytes()
    for size in (0, 1, len(good) - 1, *(dice.randrange(len(good)) for _ in range(20))):
        path.write_bytes(good[:size])
        assert newest_whole(location) == 1, f"{size} bytes of {len(good)}"
    path.write_bytes(good + b"x")
    assert newest_whole(location) == 1, "a byte more"
    path.write_bytes(good)
    assert newest_whole(location) == 2


def test_a_leftover_with_a_higher_number_is_neither_restored_nor_in_the_way(
    two: Path, tmp_path: Path
) -> None:
    location = tmp_path / "c"
    shutil.copytree(two, location)
    leftover = location / "step-00000900.e0001"
    shutil.copytree(location / NAME, leftover, ignore=shutil.ignore_patterns("manifest.json"))
    assert newest_whole(location) == 2
    cuts.save(location, cuts.state(0, Cut()), step=3)
    assert newest_whole(location) == 3
    # The manifest of another checkpoint does not make it one.
    shutil.copy(location / NAME / "manifest.json", leftover / "manifest.json")
    assert newest_whole(location) == 3
    assert damaged_manifests(location) == [leftover.name]


def test_without_the_newest_the_one_before_is_restored(two: Path, tmp_path: Path) -> None:
    location = tmp_path / "c"
    shutil.copytree(two, location)
    shutil.rmtree(location / NAME)
    assert newest_whole(location) == 1
    shutil.rmtree(location / "step-00000001.e0001")
    assert newest(location) is None
    assert not real_parts().look({"checkpoint": {"location": {"uri": location.as_uri()}}}).fresh, (
        "such a run must never begin again from step 0"
    )


# Where it cannot be written ----------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        yield from _full_by_decree(place)
        return
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _full_by_decree(place: Path) -> Iterator[Path]:
    """Without the right to mount: the same by a limit on the size of files."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield place
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_fails_the_save_and_leaves_room_for_the_next(small_disk: Path) -> None:
    cuts.save(small_disk, cuts.state(0, Cut()), step=1)
    large = {"model.large": torch.zeros(1 << 20)}
    with pytest.raises(SaveFailed) as raised:
        durable.save(
            small_disk,
            step=2,
            epoch=1,
            tensors=large,
            scalars={},
            parent="",
            run_uid=cuts.UID,
            keep_last=3,
            plan={},
            versions={},
        )
    assert raised.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert newest_whole(small_disk) == 1
    assert sorted(path.name for path in small_disk.iterdir()) == ["committed", "step-00000001.e0001"]
    cuts.save(small_disk, cuts.state(0, Cut()), step=3)
    assert newest_whole(small_disk) == 3


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A location with step 1 that cannot be written to any more."""
    place = tmp_path / "c"
    cuts.save(place, cuts.state(0, Cut()), step=1)
    if subprocess.run(["mount", "--bind", str(place), str(place)], capture_output=True).returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        yield place
        subprocess.run(["umount", str(place)], check=True)
    else:  # who may not mount is not root, or sees less than root does
        place.chmod(0o555)
        yield place
        place.chmod(0o755)


def test_a_read_only_place_fails_the_save(read_only: Path) -> None:
    with pytest.raises(SaveFailed, match=r"Read-only file system|Permission denied"):
        cuts.save(read_only, cuts.state(0, Cut()), step=2)
    assert newest_whole(read_only) == 1


def test_of_two_writers_of_one_place_the_newer_epoch_is_never_disturbed(tmp_path: Path) -> None:
    """As when a node that was thought dead is not. Each removes what saves left behind; both save the same steps."""

    def write(epoch: int) -> list[str]:
        ends = []
        for step in range(1, 12):
            try:
                ends.append(cuts.save(tmp_path, cuts.state(0, Cut()), step=step, epoch=epoch, keep_last=3))
            except (SaveFailed, Fenced) as error:
                ends.append(type(error).__name__)
        return ends

    with ThreadPoolExecutor(2) as pool:
        _, newer = pool.map(write, (1, 2))
    assert newer == [f"step-{step:08d}.e0002" for step in range(1, 12)]
    assert newest_whole(tmp_path) == 11
    for checkpoint in list_checkpoints(tmp_path):
        tensors = cuts.state(0, Cut())
        from_durable(tmp_path, checkpoint.name, tensors)
        assert cuts.wrong(tensors, checkpoint.step) == []


# Kill it ----------------------------------------------------------------


def kill_while_it_saves(location: Path, kills: int, seed: int) -> int:
    """Kill a writer at random instants; how many of them came before a commit."""
    context = multiprocessing.get_context("fork")
    dice = random.Random(seed)
    unfinished = 0
    for _ in range(kills):
        found = newest(location)
        reached = found.step if found else 0
        process = context.Process(target=cuts.save_until_killed, args=(0, Cut(), location, reached))
        process.start()
        _wait(lambda step=reached: (location / f"step-{step + 1:08d}.e0001").exists(), "a save")
        time.sleep(dice.uniform(0.0, 0.05))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        names = {path.parent.name for path in location.glob("step-*/manifest.json")}
        unfinished += {path.name for path in location.glob("step-*")} != names
        assert damaged_manifests(location) == []
        if names:
            assert newest_whole(location) >= reached
    return unfinished


def _wait(until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.0005)


def test_a_kill_at_any_instant_loses_no_committed_checkpoint(tmp_path: Path) -> None:
    assert kill_while_it_saves(tmp_path, kills=KILLS, seed=21) >= KILLS // 8


def test_a_run_whose_newest_checkpoint_is_bent_ends_with_its_name_and_trains_nothing(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, steps=6)
    spec["checkpoint"]["memory"] = {"intervalSteps": 0}
    run = Folder(tmp_path, spec)
    assert not run.run(1, pause_after=3).errors
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    file = tmp_path / "checkpoints" / found.name / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)
    ended = run.run(2, restore=Restore(RestoreSource.DURABLE, found.step, found.epoch, found.name))
    assert ended.damaged == found.name
    assert "sha256 does not match" in json.dumps([error.message for error in ended.errors])
    assert ended.progress is None
