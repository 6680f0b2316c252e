"""Reading a durable checkpoint: only the blocks that hold what this rank wants, each verified before it is used.

First all rows that are wanted, in the order of the files; then runs of neighbouring blocks, which two threads read,
verify and copy from. What of an item lies before its first row and after its last belongs to these rows, so that all
ranks together read every byte. Called by the restore.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trainer.checkpoint.lanes import share
from trainer.checkpoint.manifest import Item, Manifest
from trainer.checkpoint.medium import damaged_in, read_exactly
from trainer.checkpoint.shards import Chosen, Piece, Region, copy_common, dtype_of
from trainer.checkpoint.store import Store

RUN_BYTES = 8 << 20


@dataclass(frozen=True)
class _Rows:
    """Neighbouring rows of an item, and where some of them go. Row: what one index of the first dim stands for."""

    item: Item
    region: Region  # in the whole tensor
    target: Piece
    at: int  # in the file
    start: int  # of what is verified with them
    end: int

    def copy(self, buffer: torch.Tensor, origin: int) -> None:
        """From what was read into `buffer`, from `origin` in the file on."""
        dtype = dtype_of(self.item.dtype)
        stored = buffer.narrow(0, self.at - origin, self.region.elements * dtype.itemsize)
        copy_common(stored.view(dtype).view(self.region.shape), self.region, self.target)


@dataclass(frozen=True)
class _Run:
    """Blocks of a file that are read at once."""

    rows: tuple[_Rows, ...]
    start: int
    end: int


def copy_rows(store: Store, manifest: Manifest, chosen: Chosen[Item]) -> None:
    """Raises CheckpointDamaged, and OSError where the location does not answer."""
    wanted = [rows for stored, target in chosen for rows in _rows_of(stored.source, stored.region, target)]
    share(_runs(manifest, wanted), functools.partial(_copy_runs, store, manifest))


def _rows_of(item: Item, region: Region, target: Piece) -> Iterator[_Rows]:
    common = region.common(target.region)
    if common is None:
        return
    item_end = item.byte_offset + item.byte_length
    if not region.shape:
        yield _Rows(item, region, target, item.data_offset, item.byte_offset, item_end)
        return
    row_bytes = math.prod(region.shape[1:]) * dtype_of(item.dtype).itemsize
    first = common.offsets[0] - region.offsets[0]
    last = first + common.shape[0]
    at_once = max(1, RUN_BYTES // row_bytes)
    for row in range(first, last, at_once):
        count = min(at_once, last - row)
        at = item.data_offset + row * row_bytes
        yield _Rows(
            item,
            Region((region.offsets[0] + row, *region.offsets[1:]), (count, *region.shape[1:])),
            target,
            at,
            start=at if row else item.byte_offset,
            end=at + count * row_bytes if row + count < region.shape[0] else item_end,
        )


def _runs(manifest: Manifest, wanted: list[_Rows]) -> Iterator[_Run]:
    """Rows that share blocks or follow each other are read together, up to a limit."""
    block = manifest.block_bytes
    together: list[_Rows] = []
    start = end = 0
    for rows in sorted(wanted, key=lambda one: (one.item.file, one.start)):
        first = rows.start // block * block
        last = min(-(-rows.end // block) * block, manifest.files[rows.item.file])
        same = together and together[0].item.file == rows.item.file and first <= end
        if same and max(end, last) - start <= RUN_BYTES:
            together.append(rows)
            end = max(end, last)
            continue
        if together:
            yield _Run(tuple(together), start, end)
        together, start, end = [rows], first, last
    if together:
        yield _Run(tuple(together), start, end)


def _copy_runs(store: Store, manifest: Manifest, runs: Iterator[_Run]) -> None:
    buffer = torch.empty(0, dtype=torch.uint8)
    for run in runs:
        size = run.end - run.start
        if buffer.numel() < size:
            buffer = torch.empty(max(size, RUN_BYTES), dtype=torch.uint8)
        _read_verified(store, manifest, run, memoryview(buffer.numpy())[:size])
        for rows in run.rows:
            rows.copy(buffer, run.start)


def _read_verified(store: Store, manifest: Manifest, run: _Run, data: memoryview) -> None:
    name, item = manifest.name, run.rows[0].item
    read_exactly(store, name, item, run.start, data)
    for at in range(0, len(data), manifest.block_bytes):
        digest = hashlib.sha256(data[at : at + manifest.block_bytes]).hexdigest()
        if digest != manifest.sum_of(item.file, run.start + at):
            hit = next(rows.item for rows in run.rows if rows.end > run.start + at)
            raise damaged_in(store, name, hit, "its sha256 does not match the manifest")
