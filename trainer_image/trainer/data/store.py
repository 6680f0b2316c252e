"""Tokens of a corpus in memory-mapped shards: any sample is read without reading what is before it.

A store is a folder (docs/token-store.md): shards of tokens, where their documents start, and an index, written
last. Tokens and documents are counted through all shards; documents stand one behind the other, each with its
end token, and none crosses a shard. Read by the ranks and by `evaluate`. No torch.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from trainer.data.errors import StoreDamaged
from trainer.data.shards import Shard, verify_structure, verify_tokens
from trainer.data.store_format import INDEX_FILE, StoreIndex, parse_index


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of one document."""

    document: int
    start: int
    end: int
    goes_on: bool  # the document has a token at `end`


class TokenStore:
    """An open store. `documents`, `tokens` count; every document's end token is one of its tokens."""

    def __init__(self, index: StoreIndex, shards: Sequence[Shard], folder: Path) -> None:
        self.index = index
        self.folder = folder
        self.tokens = index.tokens
        self.documents = index.documents
        self.end_token = index.end_token
        self.identity = index.identity
        self._shards = list(shards)
        self._first_token = [0, *accumulate(shard.tokens for shard in index.shards)]
        self._first_document = [0, *accumulate(shard.documents for shard in index.shards)]

    @classmethod
    def at(cls, folder: Path) -> TokenStore:
        """The store in a folder of this machine: sizes are checked now, content when it is read. Raises
        StoreDamaged.
        """
        index = read_index(folder)
        return cls(index, [Shard(folder, shard, index) for shard in index.shards], folder)

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
        """Tokens [start, end), or what there is of them. Raises StoreDamaged."""
        end = min(end, self.tokens)
        parts = [self._shards[number].read(*inside) for number, inside in self._parts(start, end)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def spans(self, start: int, end: int) -> list[Span]:
        """The documents, or parts of documents, in tokens [start, end). Raises StoreDamaged."""
        found: list[Span] = []
        for number, (at, stop) in self._parts(start, min(end, self.tokens)):
            shard, base = self._shards[number], self._first_token[number]
            local = int(np.searchsorted(shard.starts, at, side="right")) - 1
            while at < stop:
                document_end = int(shard.starts[local + 1])
                if document_end <= at:
                    raise StoreDamaged(
                        self._document_file(number), 8 * (local + 1), "a document without tokens"
                    )
                cut = min(document_end, stop)
                document = self._first_document[number] + local
                found.append(Span(document, base + at, base + cut, cut < document_end))
                at, local = cut, local + 1
        return found

    def document_starts(self) -> Iterator[np.ndarray]:
        """By shard: where its documents start, then its end."""
        for base, shard in zip(self._first_token, self._shards, strict=False):
            yield base + shard.starts

    @property
    def starts(self) -> np.ndarray:
        """Where each document starts, then the store's end: all of them, in memory."""
        return np.concatenate([*(starts[:-1] for starts in self.document_starts()), [self.tokens]])

    def verify(self) -> None:
        """Read everything. Raises StoreDamaged with file and offset of what is not as it was written."""
        self.verify_structure()
        for index in self.index.shards:
            verify_tokens(self.folder, index, self.index)

    def verify_structure(self) -> None:
        """As `verify`, but for the tokens, whose blocks are checked when they are first read."""
        for number, (shard, index) in enumerate(zip(self._shards, self.index.shards, strict=True)):
            verify_structure(self.folder, index, self.index)
            starts = shard.starts
            if starts[0] != 0 or starts[-1] != shard.tokens or not (np.diff(starts) > 0).all():
                raise StoreDamaged(
                    self._document_file(number), 0, "documents do not stand one behind the other"
                )

    def _document_file(self, number: int) -> Path:
        return self.folder / self.index.shards[number].document_file.name

    def _parts(self, start: int, end: int) -> list[tuple[int, tuple[int, int]]]:
        """(shard, tokens of it) for tokens [start, end)."""
        found = []
        number = bisect_right(self._first_token, start) - 1
        for first, after in pairwise(self._first_token[number:]):
            if first >= end:
                break
            found.append((number, (max(start, first) - first, min(end, after) - first)))
            number += 1
        return found


def read_index(folder: Path) -> StoreIndex:
    """The index of a store on this machine. Raises StoreDamaged."""
    file = folder / INDEX_FILE
    try:
        return parse_index(file.read_bytes(), file)
    except FileNotFoundError:
        raise StoreDamaged(file, 0, "missing: the store was not completed") from None
    except OSError as error:
        raise StoreDamaged(file, 0, f"cannot be read: {os.strerror(error.errno or 0)}") from error
