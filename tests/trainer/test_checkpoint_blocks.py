"""What is read of a checkpoint, how it is verified, and that it is what was saved, whatever its type and shape."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.trainer import cuts, old_checkpoints
from tests.trainer.cuts import Cut
from tests.trainer.worlds import run_world
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainer.checkpoint import durable, hashed_blocks
from trainer.checkpoint.container import around, elements_of
from trainer.checkpoint.hashed_file import Content
from trainer.checkpoint.lanes import share
from trainer.checkpoint.manifest import damaged_manifests, newest, read_manifest
from trainer.checkpoint.restore import CheckpointDamaged, from_durable
from trainer.checkpoint.store import PathStore

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64,
    torch.float8_e4m3fn,
)  # fmt: skip
SHAPES = ((), (1,), (0, 3), (7,), (5, 3, 2))
BLOCK = 256 << 10


def save(location: Path, tensors: dict[str, torch.Tensor], step: int = 1) -> str:
    return durable.save(
        location, step=step, epoch=1, tensors=tensors, scalars={}, parent="", run_uid=cuts.UID, keep_last=None, plan={},
        versions={},
    )  # fmt: skip


def some(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return (torch.randn(shape) * 9).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and elements_of(one) == elements_of(other)


# What is saved is what is restored ----------------------------------------------------------------


def test_every_type_and_shape_comes_back_bit_by_bit_here_and_in_dcp(tmp_path: Path) -> None:
    saved = {f"{dtype}.{shape}": some(dtype, shape) for dtype in DTYPES for shape in SHAPES}
    name = save(tmp_path, saved)
    for read in (
        lambda into: from_durable(tmp_path, name, into),
        lambda into: dcp.load(into, checkpoint_id=tmp_path / name, no_dist=True),
    ):
        found = {key: torch.zeros_like(tensor) for key, tensor in saved.items()}
        read(found)
        assert [key for key, tensor in saved.items() if not same(found[key], tensor)] == []


def test_part_of_a_storage_and_turned_tensors_are_saved_as_what_they_show(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    saved = {"part": base[2:4], "turned": base.t(), "stepped": base[:, ::2]}
    name = save(tmp_path, saved)
    found = {key: torch.zeros(tensor.shape) for key, tensor in saved.items()}
    from_durable(tmp_path, name, found)
    assert all(torch.equal(found[key], tensor) for key, tensor in saved.items())
    assert max(item.byte_length for item in read_manifest(tmp_path, name).items) < 2 * 48 * 4 + 2000


def test_a_container_is_what_torch_saves_but_for_the_elements(tmp_path: Path) -> None:
    tensor = torch.randn(3, 5).to(torch.bfloat16)
    before, after = around(tensor.dtype, tuple(tensor.shape))
    path = tmp_path / "one.pt"
    path.write_bytes(before + elements_of(tensor) + after)
    assert torch.equal(torch.load(path, weights_only=True), tensor)


def test_tensors_larger_than_what_is_read_at_once_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashed_blocks, "RUN_BYTES", BLOCK)
    saved = {"long": torch.randn(700_001), "wide": torch.randn(3, 100_003), "small": torch.randn(9)}
    name = save(tmp_path, saved)
    found = {key: torch.zeros_like(tensor) for key, tensor in saved.items()}
    from_durable(tmp_path, name, found)
    assert all(torch.equal(found[key], tensor) for key, tensor in saved.items())


# What is read ----------------------------------------------------------------


class Watched(PathStore):
    """Notes what is read of the files."""

    def read_into(self, path: str, start: int, buffer: memoryview) -> int:
        spans = READ.setdefault(path.split("/")[-1], [])
        spans.append((start, start + len(buffer)))
        return super().read_into(path, start, buffer)


READ: dict[str, list[tuple[int, int]]] = {}
ROWS, WIDTH = 2048, 1024  # of float32: 8 MiB


def read_a_cut(rank: int, location: Path, name: str, dim: int | None) -> list[tuple[int, int]]:
    mesh = init_device_mesh("cpu", (2,))
    READ.clear()
    wanted: dict[str, torch.Tensor] = {}
    for key in ("a", "b"):
        whole = torch.zeros(ROWS, WIDTH)
        placement = Replicate() if dim is None else Shard(dim)
        wanted[key] = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
    from_durable(Watched(location), name, wanted)
    for tensor in wanted.values():
        assert isinstance(tensor, DTensor)
        numbers = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
        assert torch.equal(tensor.full_tensor(), numbers)
    return sorted(READ["__0_0.distcp"])


def test_a_rank_reads_the_blocks_of_its_rows_and_all_ranks_together_every_byte(tmp_path: Path) -> None:
    numbers = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    name = save(tmp_path, {"a": numbers, "b": numbers})
    size = read_manifest(tmp_path, name).files["__0_0.distcp"]
    of_ranks = run_world(read_a_cut, 2, tmp_path, name, 0)
    for spans in of_ranks:
        read = sum(end - start for start, end in spans)
        assert size / 2 <= read <= size / 2 + 4 * BLOCK
        assert all(start % BLOCK == 0 for start, _ in spans)
    reached = 0
    for start, end in sorted(span for spans in of_ranks for span in spans):
        assert start <= reached, f"nobody has read byte {reached}"
        reached = max(reached, end)
    assert reached == size
    for dim in (1, None):
        for spans in run_world(read_a_cut, 2, tmp_path, name, dim):
            assert sum(end - start for start, end in spans) >= size


def test_small_neighbours_are_read_at_once(tmp_path: Path) -> None:
    saved = {f"n{number:03d}": torch.randn(100) for number in range(300)}
    name = save(tmp_path, saved)
    READ.clear()
    found = {key: torch.zeros_like(tensor) for key, tensor in saved.items()}
    from_durable(Watched(tmp_path), name, found)
    assert all(torch.equal(found[key], tensor) for key, tensor in saved.items())
    size = read_manifest(tmp_path, name).files["__0_0.distcp"]
    assert READ["__0_0.distcp"] == [(0, size)]


# What is damaged ----------------------------------------------------------------


def test_a_flipped_bit_in_a_block_is_found_by_who_reads_it_and_names_the_item(tmp_path: Path) -> None:
    name = save(tmp_path, {"a": torch.zeros(400_000), "b": torch.zeros(400_000)})
    file = tmp_path / name / "__0_0.distcp"
    places = {
        item.name: item.data_offset + item.byte_length // 2 for item in read_manifest(tmp_path, name).items
    }
    for key, at in places.items():
        good = file.read_bytes()
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        found = {key: torch.zeros(400_000) for key in places}
        with pytest.raises(CheckpointDamaged, match=f"{key}: its sha256 does not match") as raised:
            from_durable(tmp_path, name, found)
        assert raised.value.item == key
        assert all(bool(tensor.isnan().all()) for tensor in found.values())
        file.write_bytes(good)


def test_a_manifest_whose_hashes_do_not_cover_its_files_does_not_count(tmp_path: Path) -> None:
    name = save(tmp_path, {"a": torch.zeros(400_000)})
    whole = read_manifest(tmp_path, name)
    for sums in ({}, {"__0_0.distcp": whole.sums["__0_0.distcp"][:-64]}):
        changed = {**vars(whole), "sums": sums}
        (tmp_path / name / "manifest.json").write_bytes(type(whole)(**changed).text())
        assert damaged_manifests(tmp_path) == [name]
        with pytest.raises(CheckpointDamaged, match="hashes"):
            from_durable(tmp_path, name, {"a": torch.zeros(400_000)})


# The format before ----------------------------------------------------------------


def test_a_checkpoint_of_the_format_before_is_restored_at_any_cut(tmp_path: Path) -> None:
    tensors = cuts.state(0, Cut())
    cuts.fill(tensors, 3)
    name = old_checkpoints.save(tmp_path, tensors, 3)
    content = json.loads((tmp_path / name / "manifest.json").read_text())
    assert content["stateFormat"] == 1
    assert "sums" not in content
    assert all(len(item["sha256"]) == 64 and "data_offset" not in item for item in content["items"])
    assert restored(0, Cut(), tmp_path, name) == []
    assert run_world(restored, 2, Cut(shard=2), tmp_path, name) == [[], []]
    cuts.save(tmp_path, tensors, step=4)
    found = newest(tmp_path)
    assert found is not None and found.step == 4


def restored(rank: int, cut: Cut, location: Path, name: str) -> list[str]:
    tensors = cuts.state(rank, cut)
    assert from_durable(location, name, tensors) == cuts.scalars(3)
    return cuts.wrong(tensors, 3)


def test_damage_to_a_checkpoint_of_the_format_before_is_found(tmp_path: Path) -> None:
    tensors = cuts.state(0, Cut())
    cuts.fill(tensors, 3)
    name = old_checkpoints.save(tmp_path, tensors, 3)
    file = tmp_path / name / "__0_0.distcp"
    good = file.read_bytes()
    dice = random.Random(5)
    for at in (0, len(good) - 1, *(dice.randrange(len(good)) for _ in range(25))):
        file.write_bytes(good[:at] + bytes([good[at] ^ 8]) + good[at + 1 :])
        with pytest.raises(CheckpointDamaged, match="sha256 does not match") as raised:
            from_durable(tmp_path, name, cuts.state(0, Cut()))
        assert raised.value.item in tensors
    for size in (0, len(good) - 1):
        file.write_bytes(good[:size])
        with pytest.raises(CheckpointDamaged, match=f"{len(good)} were written"):
            from_durable(tmp_path, name, cuts.state(0, Cut()))


# The parts ----------------------------------------------------------------


def test_any_part_of_a_content_is_what_was_put_there(tmp_path: Path) -> None:
    dice = random.Random(6)
    content, expected = Content(), b""
    for _ in range(40):
        buffer = dice.randbytes(dice.choice((0, 1, 5, 100)))
        assert content.add(buffer) == len(expected)
        expected += buffer
        content.align(8)
        expected += bytes(-len(expected) % 8)
    assert content.size == len(expected)
    for _ in range(200):
        start = dice.randrange(len(expected))
        end = dice.randrange(start, len(expected) + 1)
        assert b"".join(content.between(start, end)) == expected[start:end]


def test_two_threads_share_the_work_and_a_failure_ends_it() -> None:
    done: list[int] = []
    met = threading.Barrier(2)

    def work(tasks: Iterator[int]) -> None:
        met.wait(10)
        done.extend(tasks)

    share(range(100), work)
    assert sorted(done) == list(range(100))

    def fail_at_once(tasks: Iterator[int]) -> None:
        for task in tasks:
            done.append(task)
            if task == 3:
                raise OSError("no")

    done.clear()
    with pytest.raises(OSError, match="no"):
        share(range(1_000_000), fail_at_once)
    assert len(done) < 1_000_000


def test_what_cannot_be_written_at_once_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: original(fd, [buffers[0][:7]], at))
    name = save(tmp_path, {"a": torch.arange(50)})
    found = {"a": torch.zeros(50, dtype=torch.int64)}
    from_durable(tmp_path, name, found)
    assert torch.equal(found["a"], torch.arange(50))
