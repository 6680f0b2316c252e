"""Writes a token store document by document, in bounded memory.

Nothing in the folder counts until `close` has written its index. A shard is closed when the next document would
make it larger than `shard_tokens`; a document is never cut. Called by `prepare` and by `python -m
trainer.data.write`. No torch.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from trainer.data.store_format import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    INDEX_FILE,
    FileIndex,
    ShardIndex,
    StoreIndex,
    index_text,
)

SHARD_TOKENS = 1 << 28  # 512 MiB of two bytes each


class StoreWriter:
    def __init__(
        self,
        folder: Path,
        vocabulary_size: int,
        end_token: int,
        *,
        shard_tokens: int = SHARD_TOKENS,
        tokenizer: str = "",
    ) -> None:
        """`folder` must not exist. `tokenizer` is the sha256 of the tokenizer.json that makes the ids."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._vocabulary = vocabulary_size
        self._dtype = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._end = end_token
        self._limit = shard_tokens
        self._tokenizer = tokenizer
        self._shards: list[ShardIndex] = []
        self._dropped: Counter[str] = Counter()
        self._open: _ShardWriter | None = None

    def add(self, ids: Sequence[int]) -> None:
        """Append one document; its end token is added here."""
        size = len(ids) + 1
        if self._open is not None and self._open.tokens + size > self._limit:
            self._finish_shard()
        if self._open is None:
            self._open = _ShardWriter(self._folder, len(self._shards))
        document = np.empty(size, dtype=self._dtype)
        document[:-1] = ids
        document[-1] = self._end
        self._open.add(document)

    @property
    def documents(self) -> int:
        """How many were added."""
        return sum(shard.documents for shard in self._shards) + (self._open.documents if self._open else 0)

    def drop(self, reason: str) -> None:
        """Count a document that was read and is not kept."""
        self._dropped[reason] += 1

    def close(self) -> StoreIndex:
        """Write the index. Raises ValueError when there is no document."""
        self._finish_shard()
        if not self._shards:
            raise ValueError("a token store needs at least one document")
        documents = sum(shard.documents for shard in self._shards)
        index = StoreIndex(
            version=FORMAT_VERSION,
            dtype=self._dtype.str,
            tokens=sum(shard.tokens for shard in self._shards),
            documents=documents,
            end_token=self._end,
            vocabulary_size=self._vocabulary,
            tokenizer=self._tokenizer,
            block_bytes=BLOCK_BYTES,
            shards=tuple(self._shards),
            identity="",
            documents_read=documents + self._dropped.total(),
            dropped=dict(sorted(self._dropped.items())),
        )
        temporary = self._folder / f".{INDEX_FILE}"
        with temporary.open("xb") as file:
            file.write(index_text(index))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._folder / INDEX_FILE)
        return index

    def _finish_shard(self) -> None:
        if self._open is not None:
            self._shards.append(self._open.close())
            self._open = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._open is not None:
            self._open.close()


class _ShardWriter:
    def __init__(self, folder: Path, number: int) -> None:
        self._tokens = _HashedFile(folder / f"{number:05d}.tokens")
        self._documents = folder / f"{number:05d}.documents"
        self._checksums = folder / f"{number:05d}.checksums"
        self._starts = array("q", [0])
        self._sums = array("I")
        self._pending = bytearray()

    @property
    def tokens(self) -> int:
        return self._starts[-1]

    @property
    def documents(self) -> int:
        return len(self._starts) - 1

    def add(self, document: np.ndarray) -> None:
        self._starts.append(self._starts[-1] + len(document))
        self._pending += document.tobytes()
        while len(self._pending) >= BLOCK_BYTES:
            self._put(bytes(self._pending[:BLOCK_BYTES]))
            del self._pending[:BLOCK_BYTES]

    def close(self) -> ShardIndex:
        if self._pending:
            self._put(bytes(self._pending))
        return ShardIndex(
            tokens=self.tokens,
            documents=len(self._starts) - 1,
            token_file=self._tokens.close(),
            document_file=_whole_file(self._documents, np.array(self._starts, dtype="<i8").tobytes()),
            checksum_file=_whole_file(self._checksums, np.array(self._sums, dtype="<u4").tobytes()),
        )

    def _put(self, block: bytes) -> None:
        self._tokens.write(block)
        self._sums.append(zlib.crc32(block))


class _HashedFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def close(self) -> FileIndex:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return FileIndex(self._path.name, self._bytes, self._hash.hexdigest())


def _whole_file(path: Path, data: bytes) -> FileIndex:
    file = _HashedFile(path)
    file.write(data)
    return file.close()
