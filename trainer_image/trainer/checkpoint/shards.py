"""Which part of a whole tensor this rank holds, and copying what two such parts have in common.

The same arithmetic serves saving and restoring, so any cut can be read at any other. A plain tensor that
several ranks hold is the same everywhere. Called by the snapshots, the durable checkpoints and the restore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

Sizes = tuple[int, ...]
Source = TypeVar("Source")


@dataclass(frozen=True)
class Region:
    """A box in a whole tensor: it starts at `offsets` and is `shape` large."""

    offsets: Sizes
    shape: Sizes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def common(self, other: Region) -> Region | None:
        """The box that both cover, or None."""
        starts = tuple(max(a, b) for a, b in zip(self.offsets, other.offsets, strict=True))
        ends = tuple(
            min(a + m, b + n)
            for a, m, b, n in zip(self.offsets, self.shape, other.offsets, other.shape, strict=True)
        )
        if any(end <= start for start, end in zip(starts, ends, strict=True)):
            return None
        return Region(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))

    def slices(self, inner: Region) -> tuple[slice, ...]:
        """Where `inner` stands within this box."""
        return tuple(
            slice(start - origin, start - origin + size)
            for start, origin, size in zip(inner.offsets, self.offsets, inner.shape, strict=True)
        )


@dataclass(frozen=True)
class Piece:
    """This rank's part of a tensor; `local` shares its storage. `first`: no other rank has to write the same
    part.
    """

    shape: Sizes  # of the whole tensor
    region: Region
    local: torch.Tensor
    first: bool

    @property
    def dtype(self) -> str:
        return dtype_name(self.local.dtype)


@dataclass(frozen=True)
class Stored(Generic[Source]):
    """A piece of a tensor in some file. `source` says how to come by its bytes."""

    name: str
    dtype: str
    shape: Sizes  # of the whole tensor
    region: Region
    source: Source


Chosen = Sequence[tuple[Stored[Source], Piece]]  # which stored pieces go into which of this rank's


def local_piece(tensor: torch.Tensor) -> Piece:
    """The part of `tensor` that this rank holds. Raises ValueError for a cut that is not one box."""
    local = local_piece_of(tensor)
    if not isinstance(tensor, DTensor):
        whole = tuple(tensor.shape)
        return Piece(whole, Region((0,) * len(whole), whole), local, first=True)
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if tuple(shape) != tuple(local.shape):
        raise ValueError(f"the local part is {tuple(local.shape)}, its placements say {tuple(shape)}")
    if any(isinstance(placement, _StridedShard) for placement in tensor.placements):
        _check_one_box(tensor)
    coordinate = tensor.device_mesh.get_coordinate() or []
    first = all(
        c == 0 for c, p in zip(coordinate, tensor.placements, strict=True) if isinstance(p, Replicate)
    )
    return Piece(tuple(tensor.shape), Region(tuple(offsets), tuple(shape)), local, first)


def local_piece_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local part alone, sharing its storage."""
    with torch.no_grad():
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def tensor_over(memory: Any, offset: int, dtype: str, shape: Sizes) -> torch.Tensor:
    """A tensor on the bytes of a writable buffer, from `offset` on."""
    elements = math.prod(shape)
    if not elements:
        return torch.empty(shape, dtype=dtype_of(dtype))
    return torch.frombuffer(memory, dtype=dtype_of(dtype), count=elements, offset=offset).view(shape)


def _check_one_box(tensor: DTensor) -> None:
    """An uneven strided cut can leave rows that are not neighbours: refuse it rather than store it
    wrongly.
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate() or []
    rows: dict[int, torch.Tensor] = {}
    for axis, placement in enumerate(tensor.placements):
        if not isinstance(placement, _StridedShard) and not placement.is_shard():
            continue
        dim = placement.dim
        here = rows.get(dim, torch.arange(tensor.shape[dim]))
        chunks = placement._split_tensor(here, mesh.size(axis), with_padding=False, contiguous=True)[0]
        rows[dim] = chunks[coordinate[axis]]
    for dim, here in rows.items():
        if here.numel() > 1 and not bool((here.diff() == 1).all()):
            raise ValueError(
                f"dim {dim} of {tuple(tensor.shape)}: {tensor.placements} leaves rows that are not neighbours"
            )


def copy_common(source: torch.Tensor, source_region: Region, target: Piece) -> int:
    """Copy what the stored part and the local part have in common; elements copied."""
    common = source_region.common(target.region)
    if common is None:
        return 0
    with torch.no_grad():
        if not common.shape:
            target.local.copy_(source)
        else:
            target.local[target.region.slices(common)].copy_(source[source_region.slices(common)])
    return common.elements


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Raises ValueError for a name that is not a torch type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a tensor type")
    return dtype
