"""Tokens of a corpus in memory-mapped files: any sample is read without reading what is before it.

A store is a folder: `tokens.bin` (little-endian, 2 bytes a token when the vocabulary allows it, else 4),
`documents.bin` (8 bytes each: where a document starts, then the end of the last) and `index.json` (counts,
sizes and sha256 of each block, written last). Documents stand one behind the other, each with its end token.
Written by `prepare`, read by the ranks and by `evaluate`. No torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from trainer.data.errors import StoreDamaged

FORMAT_VERSION = 1
BLOCK_BYTES = 4 << 20  # a damaged byte is found to within this much


class TokenStore:
    """An open store. `documents`, `tokens` count; every document's end token is one of its tokens."""

    def __init__(self, folder: Path) -> None:
        """Open it, checking sizes but not content. Raises StoreDamaged."""
        self.folder = folder
        index_file = folder / "index.json"
        try:
            index: dict[str, Any] = json.loads(index_file.read_text())
        except FileNotFoundError:
            raise StoreDamaged(index_file, 0, "missing: the store was not completed") from None
        except ValueError as error:
            raise StoreDamaged(index_file, getattr(error, "pos", 0), "not JSON") from error
        if index.get("formatVersion") != FORMAT_VERSION:
            raise StoreDamaged(
                index_file, 0, f"format {index.get('formatVersion')}, this reads {FORMAT_VERSION}"
            )
        self.tokens: int = index["tokens"]
        self.documents: int = index["documents"]
        self.end_token: int = index["endToken"]
        self._files: dict[str, Any] = index["files"]
        for name, entry in self._files.items():
            size = (folder / name).stat().st_size if (folder / name).exists() else 0
            if size != entry["bytes"]:
                raise StoreDamaged(folder / name, size, f"ends here, but {entry['bytes']} bytes were written")
        self._tokens = np.memmap(folder / "tokens.bin", dtype=np.dtype(index["dtype"]), mode="r")
        self.starts = np.memmap(folder / "documents.bin", dtype="<i8", mode="r")

    def sequences(self, sequence_length: int) -> int:
        """Number of samples of `sequence_length` tokens; the last may be shorter, and no token is left
        out.
        """
        return -(-self.tokens // sequence_length)

    def sample(self, index: int, sequence_length: int) -> np.ndarray:
        """Tokens [index*S, index*S + S + 1) as int64 [<= S+1]: the inputs and the target of the last of
        them.
        """
        if not 0 <= index < self.sequences(sequence_length):
            raise IndexError(f"sample {index} of {self.sequences(sequence_length)}")
        start = index * sequence_length
        return self.read(start, start + sequence_length + 1)

    def read(self, start: int, end: int) -> np.ndarray:
        return self._tokens[start:end].astype(np.int64)

    def verify(self) -> None:
        """Compare every block with its hash. Raises StoreDamaged with file and offset of the first bad
        block.
        """
        for name, entry in self._files.items():
            with (self.folder / name).open("rb") as file:
                for number, digest in enumerate(entry["blocks"]):
                    if hashlib.sha256(file.read(BLOCK_BYTES)).hexdigest() != digest:
                        raise StoreDamaged(
                            self.folder / name, number * BLOCK_BYTES, "the block here has changed"
                        )


class StoreWriter:
    """Writes a new store document by document. The folder counts only once `close` has written its index."""

    def __init__(self, folder: Path, vocabulary_size: int, end_token: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._dtype = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._end = end_token
        self._starts = [0]
        self._tokens = _HashedFile(folder / "tokens.bin")

    def add(self, ids: Sequence[int]) -> None:
        """Append one document; its end token is added here."""
        self._tokens.write(np.array([*ids, self._end], dtype=self._dtype).tobytes())
        self._starts.append(self._starts[-1] + len(ids) + 1)

    def close(self) -> None:
        documents = _HashedFile(self._folder / "documents.bin")
        documents.write(np.array(self._starts, dtype="<i8").tobytes())
        index = {
            "formatVersion": FORMAT_VERSION,
            "dtype": self._dtype.str,
            "tokens": self._starts[-1],
            "documents": len(self._starts) - 1,
            "endToken": self._end,
            "files": {"tokens.bin": self._tokens.close(), "documents.bin": documents.close()},
        }
        (self._folder / "index.json").write_text(json.dumps(index))

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._tokens.close()


class _HashedFile:
    """Collects output into blocks, so that each is hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._pending = bytearray()
        self._blocks: list[str] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= BLOCK_BYTES:
            self._put(bytes(self._pending[:BLOCK_BYTES]))
            del self._pending[:BLOCK_BYTES]

    def _put(self, block: bytes) -> None:
        self._file.write(block)
        self._blocks.append(hashlib.sha256(block).hexdigest())
        self._bytes += len(block)

    def close(self) -> dict[str, Any]:
        if self._pending:
            self._put(bytes(self._pending))
            self._pending.clear()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"bytes": self._bytes, "blocks": self._blocks}
