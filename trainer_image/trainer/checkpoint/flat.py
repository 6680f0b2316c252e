"""Parameters within flat tensors: how a state that is one buffer for many parameters tells where each of them is.

Written into the manifest beside the model's configuration, and read by the export, which needs neither the engine that
wrote the state nor as many ranks. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FlatPlace:
    """Element e of a parameter, counted in row-major order, is element start + e // piece * stride + e % piece of the
    flat tensor `item`.
    """

    item: str  # without the state's prefix
    start: int
    piece: int
    stride: int

    def runs(self, elements: int) -> Iterator[tuple[int, int, int]]:
        """(first element of the parameter, where it stands in the flat tensor, length) of each contiguous part."""
        for number in range(math.ceil(elements / self.piece)):
            first = number * self.piece
            yield first, self.start + number * self.stride, min(self.piece, elements - first)

    def runs_within(self, elements: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """... of what lies in [begin, end) of the flat tensor."""
        for first, at, length in self.runs(elements):
            low, high = max(at, begin), min(at + length, end)
            if low < high:
                yield first + low - at, low, high - low


def to_json(places: Mapping[str, FlatPlace]) -> dict[str, Any]:
    return {name: asdict(place) for name, place in places.items()}


def from_json(data: Mapping[str, Any]) -> dict[str, FlatPlace]:
    return {name: FlatPlace(**place) for name, place in data.items()}


def take(flat: Any, place: FlatPlace, shape: tuple[int, ...]) -> Any:
    """The parameter, as a tensor: a view of the flat tensor where it stands in one part."""
    elements = math.prod(shape)
    if elements <= place.piece:
        return flat[place.start : place.start + elements].view(shape)
    parts = math.ceil(elements / place.piece)
    apart = flat.as_strided((parts, place.piece), (place.stride, 1), place.start)
    return apart.reshape(-1)[:elements].view(shape)
