"""The snapshot file: what is where, and which files of a folder are whole. No torch: agents read it.

    bytes 0..4095   header: magic, length, checksum, JSON (epoch, step, layout, piece, where index and tail
    are) then            index: JSON, one entry for each tensor; the same for the life of the file then
    the tensors' bytes, each at a multiple of 64 then            tail: JSON with the scalars and a checksum of
    each tensor

The header is written last and wiped first, so a file that a kill left half written has none and does not
count. Names end in `.snap` and carry the epoch, then the local rank, or step and piece where the file was fetched
from a peer: two peers may hold different pieces in files of the same name.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from trainingrun.protocol import names
from trainingrun.protocol.messages import HeldSnapshot
from trainingrun.protocol.records import SnapshotId

HEADER_BYTES = 4096
ALIGNMENT = 64
_MAGIC = b"TRSNAP01"
_FILE_NAME = re.compile(r"^e(\d+)\.(?:r\d+\.[ab]|s\d+\.p\d+-\d+-\d+)\.snap$")
FETCHED = "fetched"  # folder beside a node's own files
BUDDIES = "buddies"  # another one: what is kept for another node
_FRAME = struct.Struct("<8sIQ")  # magic, bytes of the JSON, its checksum

Coordinates = tuple[int, int, int]


@dataclass(frozen=True)
class Header:
    epoch: int
    step: int
    layout: Coordinates  # (pipeline, shard, tensor)
    piece: Coordinates  # which of them this is
    data: int  # where the tensors' bytes begin
    index: tuple[int, int, int]  # offset, bytes, checksum
    tail: tuple[int, int, int]


@dataclass(frozen=True)
class Entry:
    """One tensor's part in the file. `at` counts from the header's `data`."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]
    piece_shape: tuple[int, ...]
    at: int
    bytes: int


def pack_index(entries: Sequence[Entry]) -> bytes:
    return json.dumps([vars(entry) for entry in entries]).encode()


def unpack_index(text: bytes) -> list[Entry]:
    return [
        Entry(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in json.loads(text)
    ]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def checksum(data: Any) -> int:
    """Not against an attacker, but faster than the copy that it protects."""
    return xxhash.xxh3_64_intdigest(data)


def file_name(epoch: int, local_rank: int, buffer: int) -> str:
    return f"e{epoch:04d}.r{local_rank}.{'ab'[buffer]}.snap"


def piece_name(piece: Coordinates) -> str:
    return "-".join(map(str, piece))


def fetched_name(epoch: int, step: int, piece: Coordinates) -> str:
    return f"e{epoch:04d}.s{step:08d}.p{piece_name(piece)}.snap"


def partial_of(path: Path, writer: str = "") -> Path:
    """Where a file is written before it gets its name. `writer` tells apart who may write it at the same time."""
    return path.with_name(f".{path.name}{writer and '.'}{writer}.partial")


def epoch_in_name(path: Path) -> int | None:
    """The epoch in a snapshot file's name; None for a name that is not ours."""
    match = _FILE_NAME.match(path.name)
    return int(match[1]) if match else None


def snapshot_name(epoch: int, step: int) -> str:
    """How a memory snapshot is called in reports."""
    return f"memory:{names.checkpoint_dir(step, epoch)}"


def pack_header(header: Header) -> bytes:
    text = json.dumps(vars(header)).encode()
    return _FRAME.pack(_MAGIC, len(text), checksum(text)) + text


def unpack_header(data: bytes | memoryview) -> Header | None:
    """The header of a sealed file, or None."""
    if len(data) < HEADER_BYTES:
        return None
    magic, length, expected = _FRAME.unpack_from(data)
    text = bytes(data[_FRAME.size : _FRAME.size + length])
    if magic != _MAGIC or length > HEADER_BYTES - _FRAME.size or checksum(text) != expected:
        return None
    fields = json.loads(text)
    return Header(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    )


def read_header(path: Path) -> Header | None:
    """The header of a sealed and complete file, or None; also None when the file has just gone."""
    try:
        with path.open("rb") as file:
            header = unpack_header(file.read(HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    return header if header is not None and header.tail[0] + header.tail[1] <= size else None


def flaw(path: Path, snapshot: SnapshotId, piece: Coordinates) -> str:
    """What is wrong with a file that should be this piece of this snapshot; "" when every checksum matches."""
    header = read_header(path)
    if header is None:
        return "it is no sealed snapshot"
    if (header.epoch, header.step, header.piece) != (snapshot.epoch, snapshot.step, piece):
        return f"it is piece {header.piece} of step {header.step} (epoch {header.epoch})"
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        memoryview(memory) as whole,
    ):
        for part, (at, size, expected) in (("index", header.index), ("tail", header.tail)):
            if _checksum_of(whole, at, size) != expected:
                return f"the checksum of its {part} does not match"
        entries = unpack_index(memory[header.index[0] : header.index[0] + header.index[1]])
        sums = json.loads(memory[header.tail[0] : header.tail[0] + header.tail[1]])["sums"]
        for entry, expected in zip(entries, sums, strict=True):
            if _checksum_of(whole, header.data + entry.at, entry.bytes) != expected:
                return f"the checksum of {entry.name} does not match"
    return ""


def _checksum_of(whole: memoryview, at: int, size: int) -> int:
    with whole[at : at + size] as part:
        return checksum(part)


def files(directory: Path) -> list[Path]:
    """All snapshot files in `directory`, sealed or not, those fetched from peers included. Other folders in it are
    not looked into: they come and go meanwhile.
    """
    folders = (directory, directory / FETCHED, directory / BUDDIES)
    return sorted(path for folder in folders for path in _snapshots_in(folder))


def _snapshots_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.name.endswith(".snap")]
    except FileNotFoundError:
        return []


def held(directory: Path) -> list[HeldSnapshot]:
    """What this node holds, sealed; oldest first."""
    found: dict[tuple[int, int, Coordinates], set[Coordinates]] = {}
    for path in files(directory):
        if header := read_header(path):
            found.setdefault((header.epoch, header.step, header.layout), set()).add(header.piece)
    return [
        HeldSnapshot(epoch, step, layout, tuple(sorted(pieces)))
        for (epoch, step, layout), pieces in sorted(found.items())
    ]


def files_of(directory: Path, epoch: int, step: int) -> list[Path]:
    """Sealed files of one snapshot."""
    headers = ((path, read_header(path)) for path in files(directory))
    return [path for path, header in headers if header and (header.epoch, header.step) == (epoch, step)]


def prune(directory: Path, keep: Collection[SnapshotId]) -> None:
    """Remove every file that holds none of `keep`, unsealed ones too, and what an interrupted fetch left. Only while
    no rank of this node runs and nothing is being fetched.
    """
    for partial in [*(directory / FETCHED).glob(".*.partial"), *(directory / BUDDIES).glob(".*.partial")]:
        partial.unlink(missing_ok=True)
    for path in files(directory):
        header = read_header(path)
        if header is None or SnapshotId(header.epoch, header.step) not in keep:
            path.unlink(missing_ok=True)


def drop_copies(folder: Path, keep: Collection[SnapshotId | None]) -> None:
    """Remove the copies of other snapshots than `keep` from a folder of copies; what is arriving stays."""
    for path in _snapshots_in(folder):
        header = read_header(path)
        if header is None or SnapshotId(header.epoch, header.step) not in keep:
            path.unlink(missing_ok=True)
