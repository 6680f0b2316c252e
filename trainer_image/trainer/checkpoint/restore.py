"""From stored pieces to the tensors of this rank, whatever either was cut by.

One path for memory snapshots and durable checkpoints: find the pieces that cover what this rank wants, verify
each one's bytes as they are read, copy what is common. What is missing or has changed raises
CheckpointDamaged. Tensors of a restore that failed are filled with NaN, so a state that is damaged or half
filled can never train unnoticed. Called by every rank before its first step, and by the export.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import mmap
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import snapshot_format as form
from trainer.checkpoint.errors import CheckpointDamaged, CheckpointMismatch, NotRead
from trainer.checkpoint.manifest import Item, Manifest, manifest_of, read_manifest
from trainer.checkpoint.shards import Piece, Region, copy_common, dtype_name, local_piece, tensor_over
from trainer.checkpoint.store import Place, Store, as_store

__all__ = ["CheckpointDamaged", "CheckpointMismatch", "NotRead", "from_durable", "from_snapshots"]

_BAD_MEDIUM = (
    errno.EIO,
    errno.EUCLEAN,
    errno.EBADMSG,
)  # other errors may be a place that is away for a while


@dataclass(frozen=True)
class Stored:
    """A piece in some file. `read` gives its tensor after verifying its bytes; raises CheckpointDamaged."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    region: Region
    read: Callable[[], torch.Tensor]


def from_snapshots(
    files: Sequence[Path], epoch: int, step: int, tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Fill `tensors` in place from snapshot files of one (epoch, step); the scalars.

    Raises CheckpointDamaged, CheckpointMismatch.
    """
    checkpoint = form.snapshot_name(epoch, step)
    stored: list[Stored] = []
    scalars: dict[str, Any] | None = None
    for path in files:
        opened = _open_snapshot(checkpoint, path, epoch, step)
        stored += opened[1]
        scalars = opened[0] if scalars is None else scalars
    if scalars is None:
        raise CheckpointDamaged(checkpoint, "", "", "no file of it was given")
    _fill(checkpoint, stored, tensors)
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
    _fill(name, list(_durable_pieces(manifest, store)), tensors)
    return dict(manifest.scalars)


def _size(store: Store, path: str) -> int:
    try:
        return store.stat(path).size
    except FileNotFoundError:
        return 0


def _fill(checkpoint: str, stored: list[Stored], tensors: Mapping[str, torch.Tensor]) -> None:
    wanted = {name: local_piece(tensor) for name, tensor in tensors.items()}
    try:
        for source in _chosen(checkpoint, stored, wanted):
            copy_common(source.read(), source.region, wanted[source.name])
    except BaseException:
        for piece in wanted.values():
            if piece.local.is_floating_point():
                piece.local.fill_(float("nan"))
        raise


def _chosen(checkpoint: str, stored: list[Stored], wanted: dict[str, Piece]) -> list[Stored]:
    """Pieces to read, each once; checked to cover everything before a byte is copied."""
    by_name: dict[str, dict[Region, Stored]] = {}
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
                chosen.append(source)
        if covered != piece.region.elements:
            problem = f"{covered} of the {piece.region.elements} elements wanted are in the files"
            raise CheckpointDamaged(checkpoint, "", name, problem)
    return chosen


def _check_kind(checkpoint: str, name: str, source: Stored, piece: Piece) -> None:
    if source.shape != piece.shape or source.dtype != piece.dtype:
        found, want = f"{source.dtype} {list(source.shape)}", f"{piece.dtype} {list(piece.shape)}"
        raise CheckpointMismatch(checkpoint, name, found, want)


def _open_snapshot(checkpoint: str, path: Path, epoch: int, step: int) -> tuple[dict[str, Any], list[Stored]]:
    header = form.read_header(path)
    if header is None or (header.epoch, header.step) != (epoch, step):
        found = f"it holds step {header.step} of epoch {header.epoch}" if header else "not a sealed snapshot"
        raise CheckpointDamaged(checkpoint, path, "", found)
    with path.open("rb") as file:
        memory = mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_COPY
        )  # a private view: torch wants it writable
    whole = memoryview(memory)
    for part, (at, size, expected) in (("index", header.index), ("tail", header.tail)):
        if form.checksum(whole[at : at + size]) != expected:
            raise CheckpointDamaged(checkpoint, path, part, "its checksum does not match")
    tail = json.loads(whole[header.tail[0] : header.tail[0] + header.tail[1]].tobytes())
    entries = form.unpack_index(whole[header.index[0] : header.index[0] + header.index[1]].tobytes())

    def reader(entry: form.Entry, expected: int) -> Callable[[], torch.Tensor]:
        def read() -> torch.Tensor:
            at = header.data + entry.at
            if form.checksum(whole[at : at + entry.bytes]) != expected:
                raise CheckpointDamaged(checkpoint, path, entry.name, "its checksum does not match")
            return tensor_over(memory, at, entry.dtype, entry.piece_shape)

        return read

    stored = [
        Stored(e.name, e.dtype, e.shape, Region(e.offsets, e.piece_shape), reader(e, expected))
        for e, expected in zip(entries, tail["sums"], strict=True)
    ]
    return tail["scalars"], stored


def _durable_pieces(manifest: Manifest, store: Store) -> Iterator[Stored]:
    for item in manifest.items:
        yield Stored(
            item.name,
            item.dtype,
            item.shape,
            Region(item.offsets, item.piece_shape),
            functools.partial(_read_item, manifest.name, store, item),
        )


def _read_item(checkpoint: str, store: Store, item: Item) -> torch.Tensor:
    path = f"{checkpoint}/{item.file}"

    def damaged(problem: str) -> CheckpointDamaged:
        return CheckpointDamaged(checkpoint, store.where(path), item.name, problem)

    try:
        data = store.read(path, item.byte_offset, item.byte_length)
    except FileNotFoundError as error:
        raise damaged("the file is gone") from error
    except OSError as error:
        if error.errno not in _BAD_MEDIUM:
            raise
        raise damaged(f"cannot be read: {error.strerror}") from error
    if len(data) != item.byte_length:
        raise damaged("the file ends within it")
    if hashlib.sha256(data).hexdigest() != item.sha256:
        raise damaged("its sha256 does not match the manifest")
    try:
        tensor: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise damaged(f"not a stored tensor: {error}") from error
    if tuple(tensor.shape) != item.piece_shape or dtype_name(tensor.dtype) != item.dtype:
        raise damaged("it is not the tensor that the manifest describes")
    return tensor
