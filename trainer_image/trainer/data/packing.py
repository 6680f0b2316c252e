"""How documents become rows of at most `capacity` tokens.

Concatenate needs no plan: row i is tokens [i*S, (i+1)*S) of the store. The two others keep a document whole unless
it is longer than a row, and then cut it without loss: full rows first, and the rest like a document of its own. BestFit
puts pieces together, best fit decreasing, among WINDOW of them at a time, so that memory is bounded and the
rows of a store are the same whatever is appended later. None gives each piece a row of its own. Pure; called
by `row_plan`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

CONCATENATE = "Concatenate"
BEST_FIT = "BestFit"
NONE = "None"
PACKINGS = (CONCATENATE, BEST_FIT, NONE)

VERSION = 1  # raised when the same documents would be packed otherwise
WINDOW = 16_384  # pieces


@dataclass(frozen=True, slots=True)
class Piece:
    start: int  # in the tokens of the store
    length: int


def pieces(documents: Iterable[tuple[int, int]], capacity: int) -> Iterator[Piece]:
    """Documents (start, end), in pieces of at most `capacity` tokens."""
    for start, end in documents:
        for at in range(start, end, capacity):
            yield Piece(at, min(capacity, end - at))


def packed(found: Iterable[Piece], capacity: int, packing: str) -> Iterator[list[Piece]]:
    """Rows of pieces, each piece in one of them."""
    if packing == NONE:
        yield from ([piece] for piece in found)
        return
    window: list[Piece] = []
    for piece in found:
        window.append(piece)
        if len(window) == WINDOW:
            yield from _best_fit_rows(window, capacity)
            window = []
    yield from _best_fit_rows(window, capacity)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in rows: the longest first, each into the fullest row that still has room for it.

    Of rows with the same room the first made is taken, and of equal lengths the first comes first, so there is one
    answer.
    """
    rows: list[list[int]] = []
    room: list[int] = []  # different amounts of room that there are, ascending
    with_room: dict[int, list[int]] = {}  # amount -> rows that have it, ascending
    for index in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        length = lengths[index]
        place = bisect_left(room, length)
        if place == len(room):
            rows.append([index])
            row, left = len(rows) - 1, capacity - length
        else:
            had = room[place]
            row, left = with_room[had].pop(0), had - length
            rows[row].append(index)
            if not with_room[had]:
                del with_room[had], room[place]
        if left:
            if left not in with_room:
                insort(room, left)
                with_room[left] = []
            insort(with_room[left], row)
    return rows


def _best_fit_rows(window: list[Piece], capacity: int) -> Iterator[list[Piece]]:
    for row in best_fit([piece.length for piece in window], capacity):
        yield [window[index] for index in row]
