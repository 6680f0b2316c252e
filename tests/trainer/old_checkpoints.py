"""A checkpoint of state format 1, as it was written before files were hashed in blocks: containers one after another,
as `torch.save` writes them, with a hash of each.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from tests.trainer import cuts

from trainer.checkpoint.manifest import Item, Manifest, commit
from trainer.checkpoint.shards import dtype_name
from trainingrun.protocol import names
from trainingrun.protocol.checkpoints import HASHED_ITEMS


def save(location: Path, tensors: Mapping[str, torch.Tensor], step: int) -> str:
    """Each tensor as two items, cut along its first dim."""
    name = names.checkpoint_dir(step, 1)
    (location / name).mkdir(parents=True)
    items, data = [], b""
    for key, tensor in tensors.items():
        half = tensor.shape[0] // 2
        for start, part in ((0, tensor[:half]), (half, tensor[half:])):
            container = io.BytesIO()
            torch.save(part.clone(), container)
            offsets = (start, *(0 for _ in tensor.shape[1:]))
            items.append(
                Item(
                    name=key,
                    kind="tensor",
                    dtype=dtype_name(tensor.dtype),
                    shape=tuple(tensor.shape),
                    offsets=offsets,
                    piece_shape=tuple(part.shape),
                    file="__0_0.distcp",
                    byte_offset=len(data),
                    byte_length=len(container.getvalue()),
                    sha256=hashlib.sha256(container.getvalue()).hexdigest(),
                )
            )
            data += container.getvalue()
    (location / name / "__0_0.distcp").write_bytes(data)
    files = {"__0_0.distcp": len(data)}
    scalars = cuts.scalars(step)
    manifest = Manifest(
        name, step, 1, cuts.UID, "", scalars, {}, {}, tuple(items), files, state_format=HASHED_ITEMS
    )
    assert commit(location, manifest)
    return name
