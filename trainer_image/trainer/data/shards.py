"""One shard of a token store, memory-mapped: every byte is checked before it is used.

A block is checked once in the life of a process, when it is first touched, so opening reads nothing. Whoever
has no whole file gives `fetch`, which brings a block that is not there yet (`remote_store`). Called by the store.
No torch.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.data.errors import StoreDamaged
from trainer.data.store_format import FileIndex, ShardIndex, StoreIndex

_CHUNK_BYTES = 4 << 20


class Sums(Protocol):
    """What the blocks of a token file must be."""

    def right(self, number: int, block: memoryview) -> bool: ...


class Crc32Sums:
    def __init__(self, file: Path) -> None:
        self._sums = np.memmap(file, dtype="<u4", mode="r")

    def right(self, number: int, block: memoryview) -> bool:
        return zlib.crc32(block) == int(self._sums[number])


class Sha256Sums:
    def __init__(self, hashes: tuple[str, ...]) -> None:
        self._hashes = hashes

    def right(self, number: int, block: memoryview) -> bool:
        return hashlib.sha256(block).hexdigest() == self._hashes[number]


class Shard:
    """Tokens and documents are counted from the start of the shard."""

    def __init__(
        self,
        folder: Path,
        index: ShardIndex,
        store: StoreIndex,
        *,
        name: str = "",
        fetch: Callable[[int], None] | None = None,
    ) -> None:
        """`name` stands for the token file in errors. `fetch(block)` is called before a block is first read; it
        raises what its reader must know. Raises StoreDamaged.
        """
        for file in index.files:
            check_size(folder, file)
        self.tokens = index.tokens
        self.documents = index.documents
        self.starts = np.memmap(folder / index.document_file.name, dtype="<i8", mode="r")
        self._name = name or str(folder / index.token_file.name)
        self._block_bytes = store.block_bytes
        self._bytes = np.memmap(folder / index.token_file.name, dtype=np.uint8, mode="r")
        self._token_bytes = np.dtype(store.dtype).itemsize
        self._tokens = self._bytes.view(store.dtype)
        self._sums: Sums = (
            Sha256Sums(index.block_hashes)
            if index.checksum_file is None
            else Crc32Sums(folder / index.checksum_file.name)
        )
        blocks = -(-len(self._bytes) // store.block_bytes)
        known = len(index.block_hashes) if index.checksum_file is None else index.checksum_file.bytes // 4
        if known != blocks:
            raise StoreDamaged(self._name, 0, f"{blocks} blocks, but checksums of {known}")
        self._checked = np.zeros(blocks, dtype=bool)
        self._fetch = fetch

    def read(self, start: int, end: int) -> np.ndarray:
        """Tokens [start, end) as int64. Raises StoreDamaged."""
        if start < end:
            first = start * self._token_bytes // self._block_bytes
            last = (end * self._token_bytes - 1) // self._block_bytes
            for number in range(first, last + 1):
                if not self._checked[number]:
                    self._check(number)
        return self._tokens[start:end].astype(np.int64)

    def block(self, number: int) -> memoryview:
        start = number * self._block_bytes
        return memoryview(self._bytes[start : start + self._block_bytes])

    def _check(self, number: int) -> None:
        if self._fetch is not None:
            self._fetch(number)
        if not self._sums.right(number, self.block(number)):
            raise StoreDamaged(
                self._name,
                number * self._block_bytes,
                f"the {self._block_bytes} bytes from here have changed",
            )
        self._checked[number] = True


def check_size(folder: Path, file: FileIndex) -> None:
    path = folder / file.name
    size = path.stat().st_size if path.exists() else 0
    if size != file.bytes:
        problem = f"ends here, but {file.bytes} bytes were written"
        if size > file.bytes:
            size, problem = file.bytes, f"goes on for {size - file.bytes} bytes that were not written"
        raise StoreDamaged(path, size, problem)


def verify_structure(folder: Path, shard: ShardIndex, store: StoreIndex) -> None:
    """Read all but the tokens of a shard, and compare it with what was written. Raises StoreDamaged."""
    for file in shard.files:
        if file is not shard.token_file:
            verify_file(folder, file)
    with (folder / shard.document_file.name).open("rb") as documents:
        for number, wanted in enumerate(shard.document_hashes):
            if hashlib.sha256(documents.read(store.block_bytes)).hexdigest() != wanted:
                offset = number * store.block_bytes
                raise StoreDamaged(folder / shard.document_file.name, offset, "the block here has changed")


def verify_tokens(folder: Path, shard: ShardIndex, store: StoreIndex) -> None:
    """Read all tokens of a shard. Raises StoreDamaged with the first block that has changed."""
    opened = Shard(folder, shard, store)
    step = store.block_bytes // np.dtype(store.dtype).itemsize
    for start in range(0, shard.tokens, step):
        opened.read(start, min(start + step, shard.tokens))
    verify_file(folder, shard.token_file)


def verify_file(folder: Path, file: FileIndex) -> None:
    if file.sha256 and file_sha256(folder / file.name) != file.sha256:
        raise StoreDamaged(folder / file.name, 0, "its sha256 is not that of the index")


def file_sha256(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()
