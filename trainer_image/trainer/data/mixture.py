"""Which source each position of the run reads from, and the how-manieth sample of that source it is.

A pure function of the position: nothing is counted while training, so no resize and no restart can change it. The
weights are shares of TOKENS; sources whose samples hold fewer tokens are read more often in proportion. Within
a stage the sources take turns as evenly as they can: over any stretch each has its share, to about one sample.
A stage's weights hold from its first position to the next stage's. Called by `samples`. No torch, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERIOD = 1 << 20  # samples after which the turns repeat; shares are multiples of 1/PERIOD


@dataclass(frozen=True)
class Volume:
    """How much one source is: whole samples and the tokens in them."""

    samples: int
    tokens: int


@dataclass(frozen=True)
class Stage:
    first: int  # position
    weights: tuple[int, ...]  # by source; 0: not read in this stage


@dataclass(frozen=True)
class Turn:
    source: int
    number: int  # how many samples of the source come before it in the run


class Mixture:
    def __init__(self, volumes: Sequence[Volume], stages: Sequence[Stage]) -> None:
        """Stages begin at 0 and ascend; each has a weight that is not 0."""
        if not stages or stages[0].first != 0:
            raise ValueError("the first stage begins at position 0")
        self._volumes = list(volumes)
        self._stages = list(stages)
        self._turns = [_Turns(_turns_of_a_period(volumes, stage.weights)) for stage in stages]
        before = np.zeros(len(volumes), dtype=np.int64)
        self._before = []  # samples of each source that come before each stage
        for number, stage in enumerate(stages):
            self._before.append(before)
            if number + 1 < len(stages):
                before = before + self._turns[number].counts(stages[number + 1].first - stage.first)

    def turns(self, start: int, count: int) -> list[Turn]:
        """The turns at positions [start, start + count)."""
        found: list[Turn] = []
        while count > 0:
            stage = self._stage_at(start)
            after = self._stages[stage + 1].first if stage + 1 < len(self._stages) else start + count
            taken = min(count, after - start)
            sources, numbers = self._turns[stage].at(start - self._stages[stage].first, taken)
            numbers = numbers + self._before[stage][sources]
            found += map(Turn, sources.tolist(), numbers.tolist())
            start, count = start + taken, count - taken
        return found

    def _stage_at(self, position: int) -> int:
        return max(number for number, stage in enumerate(self._stages) if stage.first <= position)


class _Turns:
    """One stage's turns. The table of a period is made when it is first needed: most stages of a run are not."""

    def __init__(self, shares: list[int]) -> None:
        self._shares = np.array(shares, dtype=np.int64)
        self._only = shares.index(PERIOD) if PERIOD in shares else None
        self._table: tuple[np.ndarray, np.ndarray] | None = None

    def at(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, number within the stage) of `count` turns."""
        places = np.arange(start, start + count, dtype=np.int64)
        if self._only is not None:
            return np.full(count, self._only), places
        sources, numbers = self._period()
        cycle, place = np.divmod(places, PERIOD)
        chosen = sources[place].astype(np.int64)
        return chosen, cycle * self._shares[chosen] + numbers[place]

    def counts(self, turns: int) -> np.ndarray:
        """How many of the first `turns` turns are each source's."""
        cycles, rest = divmod(turns, PERIOD)
        if self._only is not None or not rest:
            rest_counts = self._shares * rest // PERIOD
        else:
            rest_counts = np.bincount(self._period()[0][:rest], minlength=len(self._shares))
        return self._shares * cycles + rest_counts

    def _period(self) -> tuple[np.ndarray, np.ndarray]:
        if self._table is None:
            # The k-th of n turns falls due at (k + 1/2) / n of the period. Both are below 2^21, so that equal
            # fractions are equal as floats, and different ones in the right order; ties go by source.
            numbers = [np.arange(share, dtype=np.int64) for share in self._shares]
            due = np.concatenate([(2 * one + 1) / (2 * max(1, len(one))) for one in numbers])
            order = np.argsort(due, kind="stable")
            sources = np.repeat(np.arange(len(self._shares), dtype=np.uint8), self._shares)
            self._table = sources[order], np.concatenate(numbers)[order].astype(np.int32)
        return self._table


def _turns_of_a_period(volumes: Sequence[Volume], weights: Sequence[int]) -> list[int]:
    """How many of a period's turns each source has: in proportion to weight / (tokens of a mean sample).

    In whole numbers, by largest remainders, so that every machine finds the same.
    """
    scale = 1
    for volume in volumes:
        scale *= volume.tokens
    rates = [
        weight * volume.samples * (scale // volume.tokens)
        for weight, volume in zip(weights, volumes, strict=True)
    ]
    whole = sum(rates)
    if not whole:
        raise ValueError("a stage needs a weight that is not 0")
    shares = [rate * PERIOD // whole for rate in rates]
    by_rest = sorted(range(len(rates)), key=lambda source: (-(rates[source] * PERIOD % whole), source))
    for source in by_rest[: PERIOD - sum(shares)]:
        shares[source] += 1
    for source, rate in enumerate(rates):
        if rate and not shares[source]:  # so small a share is still read
            shares[shares.index(max(shares))] -= 1
            shares[source] = 1
    return shares
