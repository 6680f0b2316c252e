"""Seconds that cuts take on the sizes of a run, found size by size: lower bounds first, then the best micro-batch.

Decides nothing: `fastest` takes the least average. A bound is never above what it bounds (`time.least_seconds`: what a
micro-batch takes grows with its sequences along a line), and never goes down. Pure and deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trainingrun.planner.candidates import Candidate, micro_batches, split, weigh
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import fits, memory_bill
from trainingrun.planner.sizes import Size, risk
from trainingrun.planner.time import least_seconds, predict, sequence_seconds
from trainingrun.planner.types import Inventory, ModelShape, TrainingShape


@dataclass(frozen=True)
class Group:
    """A cut with all its micro-batches on all sizes that it makes use of."""

    training: TrainingShape  # with a schedule and a recomputation of its own
    cut: Cut
    units: int
    sizes: tuple[Size, ...]

    @property
    def nodes(self) -> int:
        return self.sizes[-1].nodes

    @property
    def replicate(self) -> int:
        return self.sizes[-1].replicate


class Step(NamedTuple):
    counted: float  # seconds with the risk of running out of memory, which decide
    seconds: float  # as predicted
    micro_batch: int


@dataclass
class Scales:
    """What the cuts of one question are weighed with. Remembers what they have in common."""

    model: ModelShape
    inventory: Inventory
    slopes: dict[tuple[str, int, int, str], float] = field(default_factory=dict)

    def slope(self, group: Group) -> float:
        """Seconds of one more sequence, which depend on recomputation, tensor, pipeline and schedule."""
        cut, training = group.cut, group.training
        key = (training.activation_checkpointing, cut.tensor, cut.pipeline, cut.schedule)
        if key not in self.slopes:
            self.slopes[key] = sequence_seconds(self.model, training, self.inventory.node, cut)
        return self.slopes[key]

    def bound(self, group: Group, replicate: int) -> float:
        """Seconds of a step that no micro-batch beats."""
        return least_seconds(
            self.model,
            group.training,
            self.inventory.node,
            group.cut,
            replicate=replicate,
            sequence_seconds=self.slope(group),
        )

    def candidate(self, group: Group) -> Candidate | None:
        return weigh(self.model, group.training, self.inventory.node, group.cut, group.units)

    def seconds(self, group: Group, replicate: int) -> Step | None:
        """Of a step with the best micro-batch that fits. None when none fits."""
        node, cut, training = self.inventory.node, group.cut, group.training
        best: Step | None = None
        for size in micro_batches(training, cut, replicate):
            found = split(training, cut, replicate, micro_batch=size)
            if found is None:
                break  # larger ones fill a pipeline even less
            of = {"replicate": replicate, "micro_batch": size, "accumulation": found.accumulation}
            bill = memory_bill(self.model, training, node, cut, **of)
            if not fits(bill, node):
                continue  # a larger one may fit: what comes from other stages and what piles up is by their number
            seconds = predict(self.model, training, node, cut, **of).total
            counted = seconds * risk(bill, node)
            if best is None or counted < best.counted:
                best = Step(counted, seconds, size)
        return best


class Weighing:
    """A group of which one size after the other is weighed, the one that counts most first."""

    __slots__ = ("_candidate", "_lower", "_rest", "_scales", "_weights", "bound", "group", "seconds")

    def __init__(self, scales: Scales, group: Group) -> None:
        self._scales = scales
        self.group = group
        self._candidate: list[Candidate | None] = []
        self._weights = [size.weight for size in group.sizes]
        self._lower = self._bounds()
        self.seconds: list[float | None] = list(self._lower)  # None: does not fit there
        self._rest = sorted(range(len(group.sizes)), key=lambda place: self._weights[place])
        self.bound = self._average()

    def _bounds(self) -> list[float]:
        """For each size. On all but the largest, what replicas send each other is left out."""
        group, batch = self.group, self.group.training.global_batch_sequences
        slope, shard = self._scales.slope(group), group.cut.shard
        most = self._scales.bound(group, group.replicate)
        if len(group.sizes) == 1:
            return [most]
        fixed = self._scales.bound(group, 1) - -(-batch // shard) * slope
        shares = (-(-batch // (size.replicate * shard)) for size in group.sizes[:-1])
        return [*(share * slope + fixed for share in shares), most]

    def _average(self) -> float:
        """Seconds with which the average of tokens a second comes out."""
        every = zip(self._weights, self.seconds, strict=True)
        speed = sum(weight / seconds for weight, seconds in every if seconds is not None)
        return 1.0 / speed if speed else float("inf")

    @property
    def known(self) -> bool:
        return not self._rest

    @property
    def candidate(self) -> Candidate | None:
        """What a copy needs; None where the batch is too small for it."""
        if not self._candidate:
            self._candidate.append(self._scales.candidate(self.group))
        return self._candidate[0]

    @property
    def possible(self) -> bool:
        return self.candidate is not None and self.candidate.fits

    def refine(self) -> bool:
        if not self.possible:
            return False
        place = self._rest.pop()
        self.seconds[place] = self._at(place)
        if self.seconds[place] is None:  # it does what the next smaller does
            smaller = next((one for one in range(place - 1, -1, -1) if self.seconds[one] is not None), None)
            if smaller is not None:
                self._weights[smaller] += self._weights[place]
            self._weights[place] = 0.0
        self.bound = self._average()
        return any(seconds is not None for seconds in self.seconds)

    def _at(self, place: int) -> float | None:
        found = self._scales.seconds(self.group, self.group.sizes[place].replicate)
        return None if found is None else found.counted

    @property
    def on_largest(self) -> tuple[Size, float]:
        """The largest size that it does, and its seconds, once all are known."""
        every = zip(self.group.sizes, self.seconds, strict=True)
        return [(size, seconds) for size, seconds in every if seconds is not None][-1]

    @property
    def predicted(self) -> float:
        """Seconds on the largest size that it does, once all are known, whatever the risk."""
        found = self.step_on(self.on_largest[0])
        return float("inf") if found is None else found.seconds

    def step_on(self, size: Size) -> Step | None:
        return self._scales.seconds(self.group, size.replicate)

    @property
    def largest_bound(self) -> float:
        return self._lower[-1]

    def largest(self) -> Iterator[tuple[float, Weighing]]:
        """Seconds on the largest size, if it fits there."""
        if not self.possible:
            return
        last = len(self.group.sizes) - 1
        seconds = self._at(last) if last in self._rest else self.seconds[last]
        if seconds is not None:
            yield seconds, self
