"""From stored pieces to the tensors of this rank, whatever either was cut by.

One path for memory snapshots and durable checkpoints: find the pieces that cover what this rank wants, verify their
bytes as they are read, copy what is common. What is missing or has changed raises CheckpointDamaged. Tensors of a
restore that failed are filled with NaN, so a state that is damaged or half filled can never train unnoticed. Called by
every rank before its first step, and by the export.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import hashed_items
from trainer.checkpoint import snapshot_format as form
from trainer.checkpoint.errors import CheckpointDamaged, CheckpointMismatch, NotRead
from trainer.checkpoint.hashed_blocks import copy_rows
from trainer.checkpoint.manifest import Item, manifest_of, read_manifest
from trainer.checkpoint.shards import Chosen, Piece, Region, Source, Stored, copy_common, local_piece
from trainer.checkpoint.snapshot_reader import open_snapshot
from trainer.checkpoint.store import Place, Store, as_store
from trainingrun.protocol.checkpoints import HASHED_ITEMS

__all__ = ["CheckpointDamaged", "CheckpointMismatch", "NotRead", "from_durable", "from_snapshots"]


def from_snapshots(
    files: Sequence[Path], epoch: int, step: int, tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Fill `tensors` in place from snapshot files of one (epoch, step); the scalars.

    Raises CheckpointDamaged, CheckpointMismatch.
    """
    checkpoint = form.snapshot_name(epoch, step)
    stored: list[Stored[Callable[[], torch.Tensor]]] = []
    scalars: dict[str, Any] | None = None
    for path in files:
        opened = open_snapshot(checkpoint, path, epoch, step)
        stored += opened[1]
        scalars = opened[0] if scalars is None else scalars
    if scalars is None:
        raise CheckpointDamaged(checkpoint, "", "", "no file of it was given")
    _fill(checkpoint, stored, tensors, _copy_verified)
    return scalars


def from_durable(location: Place, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Fill `tensors` in place from the durable checkpoint `name`; the scalars.

    Raises CheckpointDamaged, CheckpointMismatch, and NotRead when the location does not answer.
    """
    store = as_store(location)
    try:
        return _from_durable(store, name, tensors)
    except OSError as error:
        raise NotRead(name, store.uri, str(error.strerror or error)) from error


def _from_durable(store: Store, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    try:
        manifest = read_manifest(store, name)
    except FileNotFoundError:
        raise CheckpointDamaged(name, store.where(manifest_of(name)), "", "it is not there") from None
    for file, size in manifest.files.items():
        actual = _size(store, f"{name}/{file}")
        if actual != size:
            where = store.where(f"{name}/{file}")
            raise CheckpointDamaged(name, where, "", f"{actual} bytes, but {size} were written")
    copy = hashed_items.copy_items if manifest.state_format == HASHED_ITEMS else copy_rows
    _fill(name, [_stored(item) for item in manifest.items], tensors, functools.partial(copy, store, manifest))
    return dict(manifest.scalars)


def _stored(item: Item) -> Stored[Item]:
    return Stored(item.name, item.dtype, item.shape, Region(item.offsets, item.piece_shape), item)


def _size(store: Store, path: str) -> int:
    try:
        return store.stat(path).size
    except FileNotFoundError:
        return 0


def _copy_verified(chosen: Chosen[Callable[[], torch.Tensor]]) -> None:
    for stored, target in chosen:
        copy_common(stored.source(), stored.region, target)


def _fill(
    checkpoint: str,
    stored: list[Stored[Source]],
    tensors: Mapping[str, torch.Tensor],
    copy: Callable[[Chosen[Source]], None],
) -> None:
    wanted = {name: local_piece(tensor) for name, tensor in tensors.items()}
    try:
        copy(_chosen(checkpoint, stored, wanted))
    except BaseException:
        for piece in wanted.values():
            if piece.local.is_floating_point():
                piece.local.fill_(float("nan"))
        raise


def _chosen(
    checkpoint: str, stored: list[Stored[Source]], wanted: dict[str, Piece]
) -> list[tuple[Stored[Source], Piece]]:
    """Pieces to read, each once, and for what; checked to cover everything before a byte is copied."""
    by_name: dict[str, dict[Region, Stored[Source]]] = {}
    for source in stored:
        by_name.setdefault(source.name, {}).setdefault(source.region, source)  # replicas hold the same part
    chosen = []
    for name, piece in wanted.items():
        sources = by_name.get(name)
        if not sources:
            raise CheckpointDamaged(checkpoint, "", name, "it is in none of the files")
        _check_kind(checkpoint, name, next(iter(sources.values())), piece)
        covered = 0
        for region, source in sources.items():
            if common := region.common(piece.region):
                covered += common.elements
                chosen.append((source, piece))
        if covered != piece.region.elements:
            problem = f"{covered} of the {piece.region.elements} elements wanted are in the files"
            raise CheckpointDamaged(checkpoint, "", name, problem)
    return chosen


def _check_kind(checkpoint: str, name: str, source: Stored[Any], piece: Piece) -> None:
    if source.shape != piece.shape or source.dtype != piece.dtype:
        found, want = f"{source.dtype} {list(source.shape)}", f"{piece.dtype} {list(piece.shape)}"
        raise CheckpointMismatch(checkpoint, name, found, want)
