"""A copy of this rank's part of the state in host memory, from which a checkpoint is written in peace.

The copy is all that a step has to wait for. Its buffers are made once and used again for every checkpoint, so only one
may be written from it at a time: whoever copies sees to that. The copies are cut like the tensors that they were made
of, so that they are saved in the same way. Called by the keeper of durable checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from trainer.checkpoint.shards import local_piece_of


class Staging:
    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}  # local parts, by name

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What `tensors` hold now, under the same names; valid until the next call."""
        locals_of = {name: local_piece_of(tensor) for name, tensor in tensors.items()}
        self._copies = {name: self._buffer(name, local) for name, local in locals_of.items()}
        for name, local in locals_of.items():
            self._copies[name].copy_(local)
        return {name: _cut_like(tensor, self._copies[name]) for name, tensor in tensors.items()}

    def _buffer(self, name: str, local: torch.Tensor) -> torch.Tensor:
        buffer = self._copies.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (local.shape, local.dtype):
            buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu")
        return buffer


def _cut_like(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
