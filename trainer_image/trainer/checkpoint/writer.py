"""DCP's file writer, which also remembers what it wrote where, with a sha256 of each item's bytes.

The files stay plain DCP: `torch.distributed.checkpoint.load` reads them at any plan. Used by `durable.save`.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.checkpoint.manifest import Item
from trainer.checkpoint.shards import dtype_name


class HashingWriter(FileSystemWriter):
    """`items` and `sizes` (bytes of each file) are those of this rank, once the save is over."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True, thread_count=1, overwrite=False)
        self.folder = folder
        self.items: list[Item] = []
        self.sizes: dict[str, int] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        future = super().write_data(plan, planner)
        described = {item.index: item.tensor_data for item in plan.items}
        by_file: dict[str, list[WriteResult]] = {}
        for result in future.wait():
            by_file.setdefault(result.storage_data.relative_path, []).append(result)
        for file, results in by_file.items():
            with (
                (self.folder / file).open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as memory,
                memoryview(memory) as written,
            ):
                self.sizes[file] = len(written)
                for result in results:
                    self.items.append(_item(result, described[result.index], written))
        return future


def _item(result: WriteResult, described: object, written: memoryview) -> Item:
    place = result.storage_data
    chunk = described.chunk  # type: ignore[attr-defined]
    dtype: torch.dtype = described.properties.dtype  # type: ignore[attr-defined]
    with written[place.offset : place.offset + place.length] as data:
        digest = hashlib.sha256(data).hexdigest()
    return Item(
        name=result.index.fqn,
        kind="tensor",
        dtype=dtype_name(dtype),
        shape=tuple(described.size),  # type: ignore[attr-defined]
        offsets=tuple(chunk.offsets),
        piece_shape=tuple(chunk.sizes),
        file=place.relative_path,
        byte_offset=place.offset,
        byte_length=place.length,
        sha256=digest,
    )
