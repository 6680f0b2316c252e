"""From the contestants' own step logs to tokens a second in each turn, and to ratios. Pure.

A step counts when it began and ended within a turn of its contestant: the log has the time at which each step was
over, so a step's time is that between two neighbours, with everything that happens between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


@dataclass(frozen=True)
class Turn:
    """Seconds since 1970 between which a contestant ran alone."""

    start: float
    end: float


@dataclass(frozen=True)
class Step:
    at: float  # when it was over
    tokens: int
    snapshot_seconds: float = 0.0  # of a memory snapshot that was taken after it


@dataclass(frozen=True)
class Rates:
    """Tokens a second of one contestant, by turn."""

    by_turn: tuple[float, ...]
    steps: int  # that counted

    @property
    def middle(self) -> float:
        return median(self.by_turn)


def whole_steps(steps: Sequence[Step], turn: Turn) -> list[tuple[float, int]]:
    """(seconds, tokens) of the steps that lie within the turn, without the snapshot that stands before a step."""
    return [
        (later.at - earlier.at - earlier.snapshot_seconds, later.tokens)
        for earlier, later in pairwise(steps)
        if turn.start <= earlier.at and later.at <= turn.end
    ]


def rates(steps: Sequence[Step], turns: Sequence[Turn], *, even: bool, stall_seconds: float = 0.0) -> Rates:
    """`stall_seconds` a step are added for what happens every so many steps only. `even`: all steps are of one size,
    and their median counts; else their sum. Raises ValueError for a turn without a whole step.
    """
    found = [whole_steps(steps, turn) for turn in turns]
    if not all(found):
        raise ValueError("a turn has no whole step; let the turns be longer")
    return Rates(
        by_turn=tuple(_rate(one, even=even, stall_seconds=stall_seconds) for one in found),
        steps=sum(len(one) for one in found),
    )


def _rate(found: list[tuple[float, int]], *, even: bool, stall_seconds: float) -> float:
    if even:
        return median(tokens for _, tokens in found) / (
            median(seconds for seconds, _ in found) + stall_seconds
        )
    return sum(tokens for _, tokens in found) / sum(seconds + stall_seconds for seconds, _ in found)


@dataclass(frozen=True)
class Ratio:
    of_medians: float
    least: float  # of the pairs of turns
    most: float


def ratio(ours: Rates, other: Rates) -> Ratio:
    pairs = [own / its for own, its in zip(ours.by_turn, other.by_turn, strict=True)]
    return Ratio(ours.middle / other.middle, min(pairs), max(pairs))
