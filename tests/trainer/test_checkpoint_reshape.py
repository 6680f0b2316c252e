from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from tests.trainer import cuts
from tests.trainer.cuts import Cut
from tests.trainer.worlds import run_world

from trainer.checkpoint.container import ALIGNMENT
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.restore import from_durable

SAVED = [(Cut(tensor=2, shard=2), 1), (Cut(pipeline=2, tensor=2), 2), (Cut(pipeline=2, shard=2), 3)]
RESTORED = {
    1: [Cut()],
    2: [Cut(shard=2), Cut(tensor=2), Cut(pipeline=2), Cut(replicate=2)],
    4: [Cut(shard=4), Cut(tensor=2, shard=2), Cut(pipeline=2, shard=2), Cut(replicate=2, tensor=2)],
}


def test_what_any_cut_saved_every_other_restores_bit_by_bit(tmp_path: Path) -> None:
    location, memory = tmp_path / "durable", tmp_path / "memory"
    names = run_world(cuts.save_cuts, 4, SAVED, location, memory)[0]
    saved = [(name, step) for name, (_, step) in zip(names, SAVED, strict=True)]
    for world, restored in RESTORED.items():
        for of_rank in run_world(cuts.restore_cuts, world, restored, saved, location, memory):
            assert len(of_rank) == 2 * len(restored) * len(saved)
            assert [(what, differ) for what, differ in of_rank if differ] == []
    plain_dcp_loads_them(location, saved)
    every_byte_is_hashed_and_no_piece_is_there_twice(location, names)


def plain_dcp_loads_them(location: Path, saved: list[tuple[str, int]]) -> None:
    for name, step in saved:
        tensors = cuts.state(0, Cut())
        dcp.load(tensors, checkpoint_id=location / name, no_dist=True)
        assert cuts.wrong(tensors, step) == []


def every_byte_is_hashed_and_no_piece_is_there_twice(location: Path, names: list[str]) -> None:
    for name in names:
        manifest = read_manifest(location, name)
        for file, size in manifest.files.items():
            hashed = [(start, end) for start, end, _ in manifest.hashed(file)]
            assert [hashed[0][0], *(end for _, end in hashed)] == [*(start for start, _ in hashed), size]
            items = sorted(
                (i.byte_offset, i.byte_offset + i.byte_length) for i in manifest.items if i.file == file
            )
            assert all(0 <= then[0] - now[1] < ALIGNMENT for now, then in pairwise(items))
            assert (items[0][0], items[-1][1]) == (0, size)
        pieces = {(item.name, item.offsets) for item in manifest.items}
        assert len(pieces) == len(manifest.items)


def test_a_replica_is_written_once(tmp_path: Path) -> None:
    """Two replicas of the whole state cost the space of one."""
    run_world(cuts.save_cuts, 2, [(Cut(replicate=2), 1)], tmp_path / "d", tmp_path / "m")
    manifest = read_manifest(tmp_path / "d", "step-00000001.e0001")
    elements = sum(torch.Size(item.piece_shape).numel() for item in manifest.items)
    assert elements == sum(tensor.numel() for tensor in cuts.state(0, Cut()).values())
    tensors = cuts.state(0, Cut())
    from_durable(tmp_path / "d", manifest.name, tensors)
    assert cuts.wrong(tensors, 1) == []
