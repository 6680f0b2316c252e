"""A token store at s3:// or http(s)://: read while it is fetched, each block once, into this machine's cache.

The index, the starts of the documents and the checksums are fetched when the store is opened; tokens when they are
first read. The folder of the copy is named by the store's content. Every block is checked before it is kept, so
a broken copy is fetched again, and only content that is wrong at its source is damage. Processes of one machine
share the copy: a block that two of them fetch at once is written twice with the same bytes. No torch.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from trainer.data.errors import DataError, StoreDamaged
from trainer.data.files import put
from trainer.data.remote import Remote, RemoteFile
from trainer.data.shards import Crc32Sums, Shard, file_sha256
from trainer.data.store import TokenStore
from trainer.data.store_format import INDEX_FILE, FileIndex, ShardIndex, StoreIndex, parse_index

FETCH_BLOCKS = 16  # fetched at once: a request costs more time than a megabyte


def fetch_index(remote: Remote) -> tuple[bytes, StoreIndex]:
    """Raises DataError, SourceAway, StoreDamaged."""
    text = remote.bytes_of(INDEX_FILE)
    return text, parse_index(text, f"{remote.uri}/{INDEX_FILE}")


def fetch_skeleton(remote: Remote, cache_dir: Path) -> StoreIndex:
    """Bring all but the tokens onto this machine. Raises DataError, SourceAway, StoreDamaged."""
    text, index = fetch_index(remote)
    if index.version < 2:
        fix = "write it again with python -m trainer.data.write, or copy it onto a volume"
        raise DataError(remote.field, remote.uri, "a store of format 1 cannot be read remotely", fix)
    folder = copy_folder(cache_dir, index.identity)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in index.shards:
        for file in (shard.document_file, shard.checksum_file):
            if file is not None:
                _fetch_whole(remote, file, folder)
        _make_sparse(folder / shard.token_file.name, shard.token_file.bytes)
        present = _present_file(folder, shard)
        if not present.exists():
            put(present, bytes(-(-shard.token_file.bytes // index.block_bytes)))
    put(folder / INDEX_FILE, text)
    return index


def open_copy(remote: Remote, cache_dir: Path, identity: str) -> TokenStore:
    """The store that `fetch_skeleton` brought. Raises StoreDamaged."""
    folder = copy_folder(cache_dir, identity)
    index = parse_index((folder / INDEX_FILE).read_bytes(), folder / INDEX_FILE)
    shards = []
    for shard in index.shards:
        blocks = BlockFetcher(remote, folder, shard, index)
        shards.append(Shard(folder, shard, index, name=blocks.name, fetch=blocks.fetch))
    return TokenStore(index, shards, folder)


def copy_folder(cache_dir: Path, identity: str) -> Path:
    return cache_dir / "remote" / "stores" / identity[:40]


class BlockFetcher:
    """Fills the token file of one shard's copy, block by block."""

    def __init__(self, remote: Remote, folder: Path, shard: ShardIndex, index: StoreIndex) -> None:
        if shard.checksum_file is None:
            raise ValueError("a remote store needs checksums of its blocks")
        self.name = f"{remote.uri.rstrip('/')}/{shard.token_file.name}"
        self._remote = remote
        self._file = shard.token_file.name
        self._size = shard.token_file.bytes
        self._at: RemoteFile | None = None
        self._block = index.block_bytes
        self._sums = Crc32Sums(folder / shard.checksum_file.name)
        # Written with pwrite, never through a map: a full disk is then an error, and not a signal.
        self._copy = np.memmap(folder / shard.token_file.name, dtype=np.uint8, mode="r")
        self._present = np.memmap(_present_file(folder, shard), dtype=np.uint8, mode="r")
        self._out = os.open(folder / shard.token_file.name, os.O_WRONLY | os.O_CLOEXEC)
        self._out_present = os.open(_present_file(folder, shard), os.O_WRONLY | os.O_CLOEXEC)

    def fetch(self, number: int) -> None:
        """Block `number` is in the copy, and right. Raises StoreDamaged, DataError, SourceAway."""
        if self._present[number] and self._right(number, self._copy):
            return
        first = number // FETCH_BLOCKS * FETCH_BLOCKS
        last = min(first + FETCH_BLOCKS, len(self._present))
        for _ in range(2):  # what was damaged on its way is whole the second time
            offset, data = self._part(first * self._block, min(last * self._block, self._size))
            if self._keep(offset, np.frombuffer(data, dtype=np.uint8), number):
                return
        raise StoreDamaged(self.name, number * self._block, f"the {self._block} bytes from here have changed")

    def _keep(self, offset: int, fetched: np.ndarray, wanted: int) -> bool:
        """Write the right ones of the fetched blocks; whether `wanted` is one of them."""
        found = False
        for start in range(0, len(fetched), self._block):
            number = (offset + start) // self._block
            block = fetched[start : start + self._block]
            if self._sums.right(number, memoryview(block)):
                os.pwrite(self._out, block.tobytes(), offset + start)
                os.pwrite(self._out_present, b"\1", number)  # after the bytes: who sees it finds them there
                found = found or number == wanted
        return found

    def _right(self, number: int, of: np.ndarray) -> bool:
        start = number * self._block
        return self._sums.right(number, memoryview(of[start : start + self._block]))

    def _part(self, start: int, end: int) -> tuple[int, bytes]:
        if self._at is None:
            self._at = self._remote.file(self._file)
            if self._at.size not in (None, self._size):
                size = min(self._at.size or 0, self._size)
                raise StoreDamaged(self.name, size, f"{self._at.size} bytes there, {self._size} were written")
        return self._remote.part(self._at, start, end)


def _fetch_whole(remote: Remote, file: FileIndex, folder: Path) -> None:
    place = folder / file.name
    if place.exists() and place.stat().st_size == file.bytes and file_sha256(place) == file.sha256:
        return
    data = remote.bytes_of(file.name)
    name = f"{remote.uri.rstrip('/')}/{file.name}"
    if len(data) != file.bytes:
        problem = f"{len(data)} bytes there, {file.bytes} were written"
        raise StoreDamaged(name, min(len(data), file.bytes), problem)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise StoreDamaged(name, 0, "its sha256 is not that of the index")
    put(place, data)


def _make_sparse(path: Path, size: int) -> None:
    """A sparse file of that size, unless it is there: never cut off what another process has filled."""
    with path.open("ab") as file:
        if file.seek(0, os.SEEK_END) < size:
            file.truncate(size)


def _present_file(folder: Path, shard: ShardIndex) -> Path:
    return folder / f"{shard.token_file.name}.present"
