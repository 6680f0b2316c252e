"""What a snapshot file holds, each tensor verified when it is read. Called by the restore."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import snapshot_format as form
from trainer.checkpoint.errors import CheckpointDamaged
from trainer.checkpoint.shards import Region, Stored, tensor_over


def open_snapshot(
    checkpoint: str, path: Path, epoch: int, step: int
) -> tuple[dict[str, Any], list[Stored[Callable[[], torch.Tensor]]]]:
    """(scalars, pieces). Raises CheckpointDamaged, as does reading a piece."""
    header = form.read_header(path)
    if header is None or (header.epoch, header.step) != (epoch, step):
        found = f"it holds step {header.step} of epoch {header.epoch}" if header else "not a sealed snapshot"
        raise CheckpointDamaged(checkpoint, path, "", found)
    with path.open("rb") as file:
        memory = mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_COPY
        )  # a private view: torch wants it writable
    whole = memoryview(memory)
    for part, (at, size, expected) in (("index", header.index), ("tail", header.tail)):
        if form.checksum(whole[at : at + size]) != expected:
            raise CheckpointDamaged(checkpoint, path, part, "its checksum does not match")
    tail = json.loads(whole[header.tail[0] : header.tail[0] + header.tail[1]].tobytes())
    entries = form.unpack_index(whole[header.index[0] : header.index[0] + header.index[1]].tobytes())

    def reader(entry: form.Entry, expected: int) -> Callable[[], torch.Tensor]:
        def read() -> torch.Tensor:
            at = header.data + entry.at
            if form.checksum(whole[at : at + entry.bytes]) != expected:
                raise CheckpointDamaged(checkpoint, path, entry.name, "its checksum does not match")
            return tensor_over(memory, at, entry.dtype, entry.piece_shape)

        return read

    stored = [
        Stored(e.name, e.dtype, e.shape, Region(e.offsets, e.piece_shape), reader(e, expected))
        for e, expected in zip(entries, tail["sums"], strict=True)
    ]
    return tail["scalars"], stored
