"""Writes this rank's part of a checkpoint into a store as plain DCP files, and remembers what is where, with a sha256
of each block of each file.

`torch.distributed.checkpoint.load` reads the files at any plan. Used by `durable.save`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainer.checkpoint import hashed_file
from trainer.checkpoint.container import ALIGNMENT, around, elements_of
from trainer.checkpoint.hashed_file import Content
from trainer.checkpoint.shards import dtype_name
from trainer.checkpoint.store import Store
from trainingrun.protocol.checkpoints import Item

METADATA_FILE = ".metadata"


class HashingWriter(StorageWriter):
    """`items`, `sizes` (bytes of each file) and `sums` (sha256 of its blocks) are those of this rank, once the save is
    over.
    """

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__()
        self.store = store
        self.folder = folder
        self.items: list[Item] = []
        self.sizes: dict[str, int] = {}
        self.sums: dict[str, str] = {}

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
            content = Content()
            results = [self._place(item, planner, content, file) for item in plan.items]
            self.sizes[file] = content.size
            self.sums[file] = hashed_file.write(self.store, f"{self.folder}/{file}", content)
            self._check_arrived(f"{self.folder}/{file}", content.size)
        future.set_result(results)
        return future

    def _place(self, item: WriteItem, planner: SavePlanner, content: Content, file: str) -> WriteResult:
        tensor = planner.resolve_data(item)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a state of tensors was expected, not {type(tensor).__name__}")
        before, after = around(tensor.dtype, tuple(tensor.shape))
        content.align(ALIGNMENT)
        start = content.add(before)
        elements = content.add(elements_of(tensor))
        content.add(after)
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
                byte_length=content.size - start,
                data_offset=elements,
            )
        )
        return WriteResult(item.index, content.size - start, _StorageInfo(file, start, content.size - start))

    def _check_arrived(self, path: str, size: int) -> None:
        stored = self.store.stat(path).size
        if stored != size:
            raise OSError(errno.EIO, f"{stored} bytes of {size} have arrived", self.store.where(path))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for part in results for result in part}
        with self.store.writing(f"{self.folder}/{METADATA_FILE}") as write_at:
            write_at(0, [pickle.dumps(metadata)])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True
