"""Snapshots of a rank's state in memory that outlives its process: the fastest way back after a failure.

Each rank writes its own part into one of two files in a memory-backed folder, allocated and touched once,
before the first step. A buffer that may be the restore point is never overwritten: not the protected one, and
files of an older epoch are kept until a snapshot of this epoch is protected. A kill at any instant leaves the
other buffer whole. The writer is called by the train loop; `held`, `files_of` and `prune` by agents, so torch
is only imported to write.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.checkpoint import snapshot_format as form
from trainer.checkpoint.errors import SnapshotFailed
from trainer.checkpoint.snapshot_format import files_of, held, prune

if TYPE_CHECKING:
    import torch

__all__ = ["SnapshotFailed", "SnapshotWriter", "files_of", "held", "prune"]

_SCALAR_BYTES = 256 << 10
_SUM_BYTES = 32  # a checksum as JSON, with its comma
_UNSEALED = -1


class SnapshotWriter:
    def __init__(
        self,
        directory: Path,
        *,
        epoch: int,
        local_rank: int,
        layout: tuple[int, int, int],
        piece: tuple[int, int, int],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        """`tensors` are live: each `write` stores what they hold then. Raises SnapshotFailed when memory is
        short.
        """
        from trainer.checkpoint.shards import local_piece

        self.directory = directory
        self.epoch = epoch
        self._layout = layout
        self._piece = piece
        self._tensors = list(tensors.values())
        self._protected = _UNSEALED  # step
        entries, at = [], 0
        for name, tensor in tensors.items():
            part = local_piece(tensor)
            size = part.local.numel() * part.local.element_size()
            entries.append(
                form.Entry(name, part.dtype, part.shape, part.region.offsets, part.region.shape, at, size)
            )
            at = form.aligned(at + size)
        directory.mkdir(parents=True, exist_ok=True)
        names = [form.file_name(epoch, local_rank, number) for number in range(2)]
        self._buffers = [_Buffer(directory / name, entries, at) for name in names]

    @property
    def bytes(self) -> int:
        """Memory that both buffers take."""
        return sum(len(buffer.memory) for buffer in self._buffers)

    def write(self, step: int, scalars: dict[str, Any]) -> float:
        """Store the state after `step`; seconds that it took. The buffer counts only once it is complete."""
        started = time.perf_counter()
        buffer = self._free_buffer()
        self._unseal(buffer)
        sums = self._copy(buffer)
        tail = self._write_tail(buffer, scalars, sums)
        self._seal(buffer, step, tail)
        return time.perf_counter() - started

    def protect(self, epoch: int, step: int) -> None:
        """Every rank has sealed this snapshot: keep it until a newer one is protected, and drop older epochs'
        files.

        A snapshot of an older epoch needs no protection: its files are not this writer's, and stay until
        then. Raises ValueError for a step that is in none of the buffers.
        """
        if epoch != self.epoch:
            return
        steps = [buffer.step for buffer in self._buffers]
        if step not in steps:
            raise ValueError(f"step {step} cannot be protected: the buffers hold {steps}")
        self._protected = step
        for path in form.files(self.directory):
            of_epoch = form.epoch_in_name(path)
            if of_epoch is not None and of_epoch < self.epoch:
                path.unlink(missing_ok=True)

    def _free_buffer(self) -> _Buffer:
        """The one that is not protected; before anything is, the one that is not the newest."""
        first, second = self._buffers
        kept = self._protected if self._protected != _UNSEALED else max(first.step, second.step)
        return second if first.step == kept != _UNSEALED else first

    def _unseal(self, buffer: _Buffer) -> None:
        buffer.step = _UNSEALED
        buffer.memory[: form.HEADER_BYTES] = bytes(form.HEADER_BYTES)

    def _copy(self, buffer: _Buffer) -> list[int]:
        from trainer.checkpoint.shards import local_piece_of

        sums = []
        for view, raw, tensor in zip(buffer.views, buffer.raws, self._tensors, strict=True):
            view.copy_(local_piece_of(tensor))
            sums.append(form.checksum(raw))
        return sums

    def _write_tail(self, buffer: _Buffer, scalars: dict[str, Any], sums: list[int]) -> bytes:
        tail = json.dumps({"scalars": scalars, "sums": sums}).encode()
        if len(tail) > buffer.tail_bytes:
            raise SnapshotFailed(
                f"the scalars and checksums take {len(tail)} bytes, but only {buffer.tail_bytes} fit"
            )
        buffer.memory[buffer.tail : buffer.tail + len(tail)] = tail
        return tail

    def _seal(self, buffer: _Buffer, step: int, tail: bytes) -> None:
        header = form.Header(
            epoch=self.epoch,
            step=step,
            layout=self._layout,
            piece=self._piece,
            data=buffer.data,
            index=(form.HEADER_BYTES, len(buffer.index), form.checksum(buffer.index)),
            tail=(buffer.tail, len(tail), form.checksum(tail)),
        )
        packed = form.pack_header(header)
        buffer.memory[: len(packed)] = packed
        buffer.step = step


class _Buffer:
    """One file, mapped: `views` are tensors over its data, `raws` the same bytes."""

    def __init__(self, path: Path, entries: list[form.Entry], data_bytes: int) -> None:
        from trainer.checkpoint.shards import tensor_over

        self.step = _UNSEALED
        self.index = form.pack_index(entries)
        self.data = form.aligned(form.HEADER_BYTES + len(self.index))
        self.tail = self.data + data_bytes
        self.tail_bytes = _SCALAR_BYTES + _SUM_BYTES * len(entries)
        self.memory = _allocate(path, self.tail + self.tail_bytes)
        self.memory[form.HEADER_BYTES : form.HEADER_BYTES + len(self.index)] = self.index
        places = [(self.data + entry.at, entry) for entry in entries]
        self.views = [tensor_over(self.memory, at, entry.dtype, entry.piece_shape) for at, entry in places]
        whole = memoryview(self.memory)
        self.raws = [whole[at : at + entry.bytes] for at, entry in places]


def _allocate(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes, its memory taken and touched now: later there is neither a fault nor a
    shortage.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        path.unlink(missing_ok=True)
        free = shutil.disk_usage(path.parent).free
        raise SnapshotFailed(
            f"{path}: {error.strerror}: a rank's snapshots need {2 * size} bytes, {free} are free. Fix: raise"
            " resources.perNode.memory, or set spec.checkpoint.memory.intervalSteps: 0"
        ) from error
    finally:
        os.close(descriptor)
