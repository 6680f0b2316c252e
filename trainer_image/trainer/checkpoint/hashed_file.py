"""A file of a checkpoint on its way into a store: buffers one after another, each block hashed as it is written.

Nothing is copied and nothing is read again. Of two threads each takes the next part of the file, hashes its blocks and
writes it, so neither hashing nor writing waits for the other. Called by the writer. No torch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator

from trainer.checkpoint.lanes import share
from trainer.checkpoint.store import Store
from trainingrun.protocol.checkpoints import BLOCK_BYTES


class Content:
    """What a file will hold. The buffers must not change until it is written."""

    def __init__(self) -> None:
        self.size = 0
        self._buffers: list[memoryview] = []
        self._starts: list[int] = []

    def add(self, buffer: bytes | memoryview) -> int:
        """Where it will stand."""
        start = self.size
        if len(buffer):
            self._buffers.append(memoryview(buffer))
            self._starts.append(start)
            self.size += len(buffer)
        return start

    def align(self, to: int) -> None:
        self.add(bytes(-self.size % to))

    def between(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes from `start` to `end`, in pieces."""
        number = bisect_right(self._starts, start) - 1
        while start < end:
            origin, buffer = self._starts[number], self._buffers[number]
            piece = buffer[start - origin : end - origin]
            yield piece
            start += len(piece)
            number += 1


def write(store: Store, path: str, content: Content) -> str:
    """Write the new file `path`; the sha256 of each of its blocks, one after another."""
    sums = [""] * -(-content.size // BLOCK_BYTES)

    def hash_part(start: int, end: int) -> None:
        for block in range(start, end, BLOCK_BYTES):
            digest = hashlib.sha256()
            for piece in content.between(block, min(block + BLOCK_BYTES, end)):
                digest.update(piece)
            sums[block // BLOCK_BYTES] = digest.hexdigest()

    with store.writing(path) as write_at:

        def write_parts(starts: Iterator[int]) -> None:
            for start in starts:
                end = min(start + store.part_bytes, content.size)
                hash_part(start, end)
                write_at(start, list(content.between(start, end)))

        share(range(0, content.size, store.part_bytes), write_parts)
    return "".join(sums)
