"""Which of many things is the cheapest, and which are nearly so, without looking at all of them. Exact and
deterministic.

Things come in groups, and each group has a bound: nothing in it costs less. Groups are opened in the order of their
bounds, so once a bound is beyond what is nearly as cheap as the cheapest so far, this group and all that follow can
hold neither the cheapest nor anything near it: the cheapest so far can only go down. What bounds and costs mean, the
callers know (`planner.fastest`, `planner.what_if`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

Group = TypeVar("Group")
Item = TypeVar("Item")

ROUNDING = 1e-9  # bounds and costs are added up in different orders


@dataclass(frozen=True)
class Outcome(Generic[Item]):
    """`near`: everything that costs at most `near` times the least, as (cost, item), cheapest first; of equal ones the
    first that the groups gave.
    """

    near: tuple[tuple[float, Item], ...]
    groups: int
    opened: int
    weighed: int

    @property
    def best(self) -> tuple[float, Item] | None:
        return self.near[0] if self.near else None


def best_first(
    groups: Iterable[Group],
    bound: Callable[[Group], float],
    members: Callable[[Group], Iterable[tuple[float, Item]]],
    *,
    near: float = 1.0,
) -> Outcome[Item]:
    """`bound(group)` is at most the cost of each of `members(group)`. `near` is at least 1."""
    order: Sequence[tuple[float, int, Group]] = sorted(
        ((bound(group), index, group) for index, group in enumerate(groups)), key=lambda entry: entry[:2]
    )
    least = float("inf")
    found: list[tuple[float, int, int, Item]] = []
    opened = weighed = 0
    for lower, index, group in order:
        if lower * (1.0 - ROUNDING) > near * least:
            break
        opened += 1
        for place, (cost, item) in enumerate(members(group)):
            weighed += 1
            if cost <= near * least:
                found.append((cost, index, place, item))
                least = min(least, cost)
    kept = sorted((entry for entry in found if entry[0] <= near * least), key=lambda entry: entry[:3])
    return Outcome(tuple((cost, item) for cost, _, _, item in kept), len(order), opened, weighed)


class Refined(Protocol):
    """Something whose cost is found step by step."""

    @property
    def bound(self) -> float:
        """At most the cost; never goes down."""

    @property
    def known(self) -> bool:
        """Whether `bound` is the cost."""

    def refine(self) -> bool:
        """One step. False: it is out."""


Step = TypeVar("Step", bound=Refined)


def refine_first(items: Iterable[Step], *, near: float = 1.0, limit: float = float("inf")) -> Outcome[Step]:
    """As `best_first`, for things of which each costs much to weigh: always the one with the least bound is weighed
    one step further. Of those that are far off, only the first steps are taken. What costs more than `limit` is out.
    """
    heap = [(item.bound, index, item) for index, item in enumerate(items)]
    heapify(heap)
    count, least = len(heap), float("inf")
    found: list[tuple[float, Step]] = []
    opened: set[int] = set()
    weighed = 0
    while heap:
        lower, index, item = heappop(heap)
        if lower * (1.0 - ROUNDING) > min(near * least, limit):
            break
        if item.known:
            least = min(least, lower)
            found.append((lower, item))
            continue
        opened.add(index)
        weighed += 1
        if item.refine():
            heappush(heap, (item.bound, index, item))
    kept = tuple(entry for entry in found if entry[0] <= near * least)
    return Outcome(kept, count, len(opened), weighed)
