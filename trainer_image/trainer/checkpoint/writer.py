"""Writes this rank's part of a checkpoint into a store as plain DCP files, and remembers what is where, with a sha256
of each item's bytes.

`torch.distributed.checkpoint.load` reads the files at any plan. Each byte is hashed on its way, while it is being
written, and never read again. Used by `durable.save`.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.checkpoint.shards import dtype_name
from trainer.checkpoint.store import Store
from trainingrun.protocol.checkpoints import Item

METADATA_FILE = ".metadata"
_WORTH_A_THREAD = 1 << 18  # bytes


class HashingWriter(StorageWriter):
    """`items` and `sizes` (bytes of each file) are those of this rank, once the save is over."""

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__()
        self.store = store
        self.folder = folder
        self.items: list[Item] = []
        self.sizes: dict[str, int] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one save to the next: a writer is for one."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The folder is made by whoever begins the save."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{rank}_"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        future: Future[list[WriteResult]] = Future()
        results = []
        if plan.items:
            file = f"{plan.storage_data.prefix}0.distcp"
            path = f"{self.folder}/{file}"
            with (
                ThreadPoolExecutor(1, thread_name_prefix="hashing") as hasher,
                self.store.writing(path) as raw,
            ):
                stream = _HashedStream(raw, hasher)
                results = [self._write(item, planner, stream, file) for item in plan.items]
            self.sizes[file] = stream.position
            stored = self.store.stat(path).size
            if stored != stream.position:
                problem = f"{stored} bytes of {stream.position} have arrived"
                raise OSError(errno.EIO, problem, self.store.where(path))
        future.set_result(results)
        return future

    def _write(self, item: WriteItem, planner: SavePlanner, stream: _HashedStream, file: str) -> WriteResult:
        start = stream.begin()
        try:
            torch.save(_alone(planner.resolve_data(item)), stream)
        except RuntimeError as error:  # torch's way to say that writing failed; the reason is lost in it
            if stream.failure is not None:
                raise stream.failure from error
            raise
        length = stream.position - start
        described: Any = item.tensor_data
        self.items.append(
            Item(
                name=item.index.fqn,
                kind="tensor",
                dtype=dtype_name(described.properties.dtype),
                shape=tuple(described.size),
                offsets=tuple(described.chunk.offsets),
                piece_shape=tuple(described.chunk.sizes),
                file=file,
                byte_offset=start,
                byte_length=length,
                sha256=stream.digest(),
            )
        )
        return WriteResult(item.index, length, _StorageInfo(file, start, length))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}
        with self.store.writing(f"{self.folder}/{METADATA_FILE}") as file:
            file.write(pickle.dumps(metadata))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _alone(tensor: torch.Tensor | io.BytesIO) -> torch.Tensor:
    """The tensor with nothing else in its storage, all of which would be written."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a state of tensors was expected, not {type(tensor).__name__}")
    alone = tensor.detach().cpu()
    return alone if alone.untyped_storage().nbytes() == alone.nbytes else alone.clone()


class _HashedStream(io.RawIOBase):
    """Writes through to `raw`; large pieces are hashed in another thread meanwhile."""

    def __init__(self, raw: IO[bytes], hasher: ThreadPoolExecutor) -> None:
        super().__init__()
        self.position = 0
        self.failure: OSError | None = None
        self._raw = raw
        self._hasher = hasher
        self._hash = hashlib.sha256()

    def begin(self) -> int:
        """A new item begins here."""
        self._hash = hashlib.sha256()
        return self.position

    def digest(self) -> str:
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            if size < _WORTH_A_THREAD:
                self._hash.update(data)
                self._raw.write(data)
            else:
                hashed = self._hasher.submit(self._hash.update, data)
                self._raw.write(data)
                hashed.result()
        except OSError as error:
            self.failure = error
            raise
        self.position += size
        return size

    def tell(self) -> int:
        return self.position
