"""Checkpoints of state format 1, which are no longer written: a hash of each item, which is read as a whole.

Called by the restore.
"""

from __future__ import annotations

import hashlib
import io
import pickle

import torch

from trainer.checkpoint.errors import CheckpointDamaged
from trainer.checkpoint.manifest import Item, Manifest
from trainer.checkpoint.medium import damaged_in, read_exactly
from trainer.checkpoint.shards import Chosen, copy_common, dtype_name
from trainer.checkpoint.store import Store


def copy_items(store: Store, manifest: Manifest, chosen: Chosen[Item]) -> None:
    """Raises CheckpointDamaged, and OSError where the location does not answer."""
    for stored, target in chosen:
        copy_common(_read(store, manifest.name, stored.source), stored.region, target)


def _read(store: Store, checkpoint: str, item: Item) -> torch.Tensor:
    def damaged(problem: str) -> CheckpointDamaged:
        return damaged_in(store, checkpoint, item, problem)

    data = memoryview(bytearray(item.byte_length))
    read_exactly(store, checkpoint, item, item.byte_offset, data)
    if hashlib.sha256(data).hexdigest() != item.sha256:
        raise damaged("its sha256 does not match the manifest")
    try:
        tensor: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise damaged(f"not a stored tensor: {error}") from error
    if tuple(tensor.shape) != item.piece_shape or dtype_name(tensor.dtype) != item.dtype:
        raise damaged("it is not the tensor that the manifest describes")
    return tensor
