"""The rows of a packed store, planned once and kept in the cache: files that ranks map, whatever the size.

A plan is a folder named by (store, sequence length, packing), with the pieces of all rows one behind the other and
the number of the first piece of each row, and their hashes, which are compared whenever it is opened. `make_rows`
(agents) writes it, and writes one anew that is not whole; `open_rows` (ranks) only opens it. No torch.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainer.data import packing as packings
from trainer.data.errors import DataError, StoreDamaged
from trainer.data.files import beside, discard, locked
from trainer.data.packing import Piece
from trainer.data.sealed import check_files, described, read_sealed, write_sealed
from trainer.data.store import Span, TokenStore

log = logging.getLogger(__name__)

_FLUSH_PIECES = 1 << 16
_PLAN = "plan.json"


class RowPlan:
    """Row i is pieces [first[i], first[i + 1])."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreDamaged."""
        try:
            plan = read_sealed(folder / _PLAN)
        except FileNotFoundError:
            raise StoreDamaged(folder / _PLAN, 0, "missing") from None
        check_files(folder, plan["files"])
        self._starts = np.memmap(folder / "starts.bin", dtype="<i8", mode="r")
        self._lengths = np.memmap(folder / "lengths.bin", dtype="<i4", mode="r")
        self._first = np.memmap(folder / "rows.bin", dtype="<i8", mode="r")
        self.count = len(self._first) - 1

    def pieces(self, row: int) -> list[Piece]:
        found = range(int(self._first[row]), int(self._first[row + 1]))
        return [Piece(int(self._starts[number]), int(self._lengths[number])) for number in found]


class ConcatenatedRows:
    """Rows of a store that is read from its first to its last token."""

    def __init__(self, store: TokenStore, sequence_length: int) -> None:
        self.store = store
        self.count = store.sequences(sequence_length)
        self._length = sequence_length

    def spans(self, row: int) -> list[Span]:
        start = row * self._length
        return self.store.spans(start, start + self._length)

    def logged(self, row: int) -> np.ndarray:
        """The row's tokens for the reader's log: what is read for it, the target of the last one included."""
        return self.store.sample(row, self._length)


class PlannedRows:
    """Rows as a plan has them."""

    def __init__(self, store: TokenStore, plan: RowPlan) -> None:
        self.store = store
        self.count = plan.count
        self._plan = plan

    def spans(self, row: int) -> list[Span]:
        found = self._plan.pieces(row)
        return [span for piece in found for span in self.store.spans(piece.start, piece.start + piece.length)]

    def logged(self, row: int) -> np.ndarray:
        read = [self.store.read(span.start, span.end + int(span.goes_on)) for span in self.spans(row)]
        return np.concatenate(read)


Rows = ConcatenatedRows | PlannedRows


def make_rows(store: TokenStore, sequence_length: int, packing: str, cache_dir: Path) -> Rows:
    """Plan the rows unless they are planned and the plan is whole. For agents."""
    if packing == packings.CONCATENATE:
        return ConcatenatedRows(store, sequence_length)
    folder = _plan_folder(store, sequence_length, packing, cache_dir)
    with locked(folder):
        if folder.exists():
            try:
                return PlannedRows(store, RowPlan(folder))
            except StoreDamaged as error:
                log.warning("%s: byte %s: %s; planned anew", error.file, error.offset, error.problem)
                discard(folder)
        _write(store, sequence_length, packing, folder)
    return PlannedRows(store, RowPlan(folder))


def open_rows(store: TokenStore, sequence_length: int, packing: str, cache_dir: Path) -> Rows:
    """Raises DataError when they were not planned, StoreDamaged."""
    if packing == packings.CONCATENATE:
        return ConcatenatedRows(store, sequence_length)
    folder = _plan_folder(store, sequence_length, packing, cache_dir)
    if not folder.exists():
        fix = "call prepare first, with the same cache folder"
        raise DataError("spec.data.packing", packing, f"not planned in {cache_dir}", fix)
    return PlannedRows(store, RowPlan(folder))


def _plan_folder(store: TokenStore, sequence_length: int, packing: str, cache_dir: Path) -> Path:
    identity = f"{packings.VERSION}:{packings.WINDOW}:{store.identity}:{sequence_length}:{packing}"
    return cache_dir / "rows" / hashlib.sha256(identity.encode()).hexdigest()[:32]


def _write(store: TokenStore, sequence_length: int, packing: str, folder: Path) -> None:
    temporary = beside(folder)
    temporary.mkdir(parents=True)
    starts, lengths, first = array("q"), array("i"), array("q", [0])
    total = 0
    with (
        (temporary / "starts.bin").open("wb") as starts_file,
        (temporary / "lengths.bin").open("wb") as lengths_file,
        (temporary / "rows.bin").open("wb") as rows_file,
    ):

        def flush() -> None:
            for numbers, kind, file in (
                (starts, "<i8", starts_file),
                (lengths, "<i4", lengths_file),
                (first, "<i8", rows_file),
            ):
                file.write(np.array(numbers, dtype=kind).tobytes())
                del numbers[:]

        cut = packings.pieces(_documents(store), sequence_length)
        for row in packings.packed(cut, sequence_length, packing):
            starts.extend(piece.start for piece in row)
            lengths.extend(piece.length for piece in row)
            total += len(row)
            first.append(total)
            if len(starts) >= _FLUSH_PIECES:
                flush()
        flush()
    files = described(temporary, list(temporary.iterdir()))
    write_sealed(temporary / _PLAN, {"packing": packing, "files": files})
    temporary.rename(folder)


def _documents(store: TokenStore) -> Iterator[tuple[int, int]]:
    for starts in store.document_starts():
        bounds = starts.tolist()
        yield from pairwise(bounds)
