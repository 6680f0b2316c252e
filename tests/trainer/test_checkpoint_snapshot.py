from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import cuts
from tests.trainer.cuts import Cut

from trainer.checkpoint import snapshot, snapshot_format
from trainer.checkpoint.restore import CheckpointDamaged, from_snapshots
from trainer.checkpoint.snapshot import SnapshotFailed, SnapshotWriter, files_of, held, prune
from trainingrun.protocol.messages import HeldSnapshot
from trainingrun.protocol.records import SnapshotId

ONE = (1, 1, 1)
FIRST = (0, 0, 0)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    folder = Path("/dev/shm") / f"test-snapshots-{os.getpid()}"
    yield folder if folder.parent.is_dir() else tmp_path
    shutil.rmtree(folder, ignore_errors=True)


def a_writer(folder: Path, epoch: int = 1, **other: Any) -> tuple[SnapshotWriter, dict[str, torch.Tensor]]:
    tensors = other.pop("tensors", None) or cuts.state(0, Cut())
    options = {"local_rank": 0, "layout": ONE, "piece": FIRST} | other
    return SnapshotWriter(folder, epoch=epoch, tensors=tensors, **options), tensors


def write(writer: SnapshotWriter, tensors: dict[str, torch.Tensor], step: int) -> None:
    cuts.fill(tensors, step)
    writer.write(step, cuts.scalars(step))


def assert_holds(folder: Path, epoch: int, step: int) -> None:
    tensors = cuts.state(0, Cut())
    assert from_snapshots(files_of(folder, epoch, step), epoch, step, tensors) == cuts.scalars(step)
    assert cuts.wrong(tensors, step) == []


def steps_held(folder: Path) -> list[tuple[int, int]]:
    return [(found.epoch, found.step) for found in held(folder)]


def test_two_buffers_take_turns_and_the_protected_one_stays(memory: Path) -> None:
    writer, tensors = a_writer(memory)
    seen = []
    for step in (1, 2, 3):
        write(writer, tensors, step)
        seen.append(steps_held(memory))
    writer.protect(1, 2)
    for step in (4, 5):
        write(writer, tensors, step)
        seen.append(steps_held(memory))
        assert_holds(memory, 1, 2)
    assert seen == [[(1, 1)], [(1, 1), (1, 2)], [(1, 2), (1, 3)], [(1, 2), (1, 4)], [(1, 2), (1, 5)]]
    writer.protect(1, 5)
    write(writer, tensors, 6)
    assert steps_held(memory) == [(1, 5), (1, 6)]
    with pytest.raises(ValueError, match="step 4 cannot be protected"):
        writer.protect(1, 4)


def test_the_restore_point_of_an_older_epoch_stays_until_a_newer_one_is_protected(memory: Path) -> None:
    old, tensors = a_writer(memory, epoch=4)
    write(old, tensors, 10)
    old.protect(4, 10)
    fetched = memory / "fetched"
    fetched.mkdir()
    shutil.copy(files_of(memory, 4, 10)[0], fetched / snapshot_format.fetched_name(4, 10, (0, 0, 0)))
    new, _ = a_writer(memory, epoch=5, tensors=tensors)
    new.protect(4, 10)
    for step in (11, 12, 13):
        write(new, tensors, step)
        assert_holds(memory, 4, 10)
    new.protect(5, 13)
    assert steps_held(memory) == [(5, 12), (5, 13)]
    assert {path.name for path in snapshot_format.files(memory)} == {"e0005.r0.a.snap", "e0005.r0.b.snap"}


def test_held_names_the_pieces_of_a_node_and_those_it_fetched(memory: Path) -> None:
    layout = (1, 2, 2)
    for local_rank in range(2):
        writer, tensors = a_writer(
            memory, epoch=3, local_rank=local_rank, layout=layout, piece=(0, 0, local_rank)
        )
        write(writer, tensors, 8)
    fetched = memory / "fetched"
    fetched.mkdir()
    writer, tensors = a_writer(fetched, epoch=3, local_rank=1, layout=layout, piece=(0, 1, 1))
    write(writer, tensors, 8)
    assert held(memory) == [HeldSnapshot(3, 8, layout, ((0, 0, 0), (0, 0, 1), (0, 1, 1)))]
    assert len(files_of(memory, 3, 8)) == 3
    assert files_of(memory, 3, 7) == []


def test_prune_keeps_what_it_is_told(memory: Path) -> None:
    writer, tensors = a_writer(memory)
    write(writer, tensors, 1)
    write(writer, tensors, 2)
    a_writer(memory, epoch=2, tensors=tensors)  # never sealed
    prune(memory, [SnapshotId(1, 2)])
    assert steps_held(memory) == [(1, 2)]
    assert len(snapshot_format.files(memory)) == 1


def test_an_empty_or_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert held(tmp_path / "none") == []
    (tmp_path / "x.snap").write_bytes(b"short")
    assert held(tmp_path) == []


def test_types_and_sizes_of_all_kinds_come_back_bit_by_bit(memory: Path) -> None:
    tensors = {
        "bf16": torch.randn(3, 5).bfloat16(),
        "fp64": torch.randn(2).double(),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.empty(0, 4),
        "strided": torch.randn(4, 6).t(),
    }
    writer, _ = a_writer(memory, tensors=tensors)
    writer.write(1, {"text": "ü" * 1000})
    back = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert from_snapshots(files_of(memory, 1, 1), 1, 1, back) == {"text": "ü" * 1000}
    assert all(torch.equal(tensor, back[name]) for name, tensor in tensors.items())


# Break it ----------------------------------------------------------------

PHASES = ("_unseal", "_copy", "_write_tail", "_seal")


def die_in(folder: Path, phase: str, after: bool) -> None:
    original = getattr(SnapshotWriter, phase)

    def killed(self: SnapshotWriter, *arguments: Any) -> Any:
        result = original(self, *arguments) if after else None
        if self.armed:  # type: ignore[attr-defined]
            cuts.die()
        return result if after else original(self, *arguments)

    setattr(SnapshotWriter, phase, killed)
    SnapshotWriter.armed = False  # type: ignore[attr-defined]
    writer, tensors = a_writer(folder)
    write(writer, tensors, 1)
    writer.protect(1, 1)
    write(writer, tensors, 2)
    writer.armed = True  # type: ignore[attr-defined]
    write(writer, tensors, 3)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_between_the_phases_of_a_write_leaves_the_protected_one(
    memory: Path, phase: str, after: bool
) -> None:
    process = multiprocessing.get_context("fork").Process(target=die_in, args=(memory, phase, after))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    beside = {("_unseal", False): [(1, 2)], ("_seal", True): [(1, 3)]}.get((phase, after), [])
    assert steps_held(memory) == [(1, 1), *beside]
    for epoch, step in steps_held(memory):
        assert_holds(memory, epoch, step)


def write_until_killed(folder: Path, epoch: int, step: int) -> None:
    writer, tensors = a_writer(folder, epoch)
    while True:
        step += 1
        write(writer, tensors, step)
        writer.protect(epoch, step)


def test_a_kill_at_any_instant_leaves_the_newest_sealed_step_whole(memory: Path) -> None:
    step = 0
    context = multiprocessing.get_context("fork")
    for epoch in range(1, 11):
        process = context.Process(target=write_until_killed, args=(memory, epoch, step))
        process.start()
        deadline = time.monotonic() + 30
        while not any(found[0] == epoch for found in steps_held(memory)) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(random.Random(epoch).uniform(0, 0.02))
        process.kill()
        process.join()
        found = steps_held(memory)
        assert found and found[-1][0] == epoch
        for of_epoch, of_step in found:
            assert_holds(memory, of_epoch, of_step)
        step = found[-1][1]
    assert step > 10


def test_a_flipped_bit_in_memory_is_never_restored(memory: Path) -> None:
    writer, tensors = a_writer(memory)
    write(writer, tensors, 1)
    path = files_of(memory, 1, 1)[0]
    header = snapshot_format.read_header(path)
    assert header is not None
    entries = snapshot_format.unpack_index(path.read_bytes()[header.index[0] :][: header.index[1]])
    places = [header.data + entry.at + entry.bytes // 2 for entry in entries]
    places += [header.index[0] + 5, header.tail[0] + header.tail[1] // 2, 60]
    for place in places:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
            whole[place] ^= 8
            back = cuts.state(0, Cut())
            with pytest.raises(CheckpointDamaged, match=r"checksum does not match|not a sealed") as raised:
                from_snapshots([path], 1, 1, back)
            assert raised.value.checkpoint == "memory:step-00000001.e0001"
            assert all(bool(t.isnan().all()) or not bool(t.any()) for t in back.values())
            whole[place] ^= 8
    assert_holds(memory, 1, 1)


def test_a_missing_or_truncated_piece_is_found(memory: Path) -> None:
    tensors = {"a": torch.arange(4.0)}
    writer, _ = a_writer(memory, tensors=tensors)
    writer.write(1, {})
    path = files_of(memory, 1, 1)[0]
    with pytest.raises(CheckpointDamaged, match="b: it is in none of the files"):
        from_snapshots([path], 1, 1, {"b": torch.zeros(4)})
    with pytest.raises(CheckpointDamaged, match="it holds step 1 of epoch 1"):
        from_snapshots([path], 1, 2, {"a": torch.zeros(4)})
    with pytest.raises(CheckpointDamaged, match="no file of it"):
        from_snapshots([], 1, 1, {"a": torch.zeros(4)})
    header = snapshot_format.read_header(path)
    assert header is not None
    os.truncate(path, header.tail[0] + 1)
    assert held(memory) == []
    with pytest.raises(CheckpointDamaged, match="not a sealed snapshot"):
        from_snapshots([path], 1, 1, {"a": torch.zeros(4)})


def test_a_folder_that_is_too_small_says_how_much_is_needed(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot.os, "posix_fallocate", full)
    with pytest.raises(
        SnapshotFailed, match=r"No space left on device: a rank's snapshots need \d+ bytes, \d+ are free"
    ):
        a_writer(memory)
    assert snapshot_format.files(memory) == []


def test_scalars_that_do_not_fit_are_refused(memory: Path) -> None:
    writer, tensors = a_writer(memory)
    write(writer, tensors, 1)
    writer.protect(1, 1)
    with pytest.raises(SnapshotFailed, match=r"only .* fit"):
        writer.write(2, {"text": json.dumps("x" * (1 << 20))})
    assert steps_held(memory) == [(1, 1)]
