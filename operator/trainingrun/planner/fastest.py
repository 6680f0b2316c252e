"""The cut that trains fastest over the sizes of a run of accelerators, of all that are allowed and fit.

What is tried: tensor and pipeline degrees, the schedule of the pipeline (if it was left open), shards inside a node
and over whole nodes, recomputation (if it was left open), and for each of them every micro-batch on every size that
copies fill. What counts is the average of tokens a second over the sizes, weighed as `sizes` says: many small copies
waste no nodes, large ones may be so much faster that they pay for nodes that idle now and then. A run is promised to
go on at minNodes: cuts that do are taken unless that costs more than a fourth more time, and else those that begin
at as few nodes as can be for a tenth. Of nearly equal ones the simpler is taken: fewest nodes for a copy (most copies),
least model parallelism, least recomputation.

Exact: what is not looked at is proven to be slower (`best_first`, `time.least_seconds`). Pure and deterministic; called
by the search, for nodes with accelerators. On CPU nodes, whose processes share cores and network, the simplest cut
that fits is taken instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainingrun.planner import rules
from trainingrun.planner.best_first import Outcome, best_first, refine_first
from trainingrun.planner.candidates import Candidate, pairs
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import fits, fits_device
from trainingrun.planner.scales import Group, Scales, Weighing
from trainingrun.planner.sizes import Size, sizes_of
from trainingrun.planner.types import Inventory, ModelShape, TrainingShape

NEARLY = 1.03  # by average and on the largest size; predictions of steps err by more than this
WORTH = 1.25  # of the best average, that a cut may cost that trains at minNodes ...
WORTH_LATER = 1.1  # ... or, where none does, at fewer nodes than the best
RECOMPUTATION = ("None", "Selective", "Full")


@dataclass(frozen=True)
class Rival:
    """A cut that is not taken, and how it would do."""

    training: TrainingShape
    cut: Cut
    units: int
    seconds: float  # of a step on the most nodes that it makes use of, as predicted
    sizes: tuple[int, ...]  # that it makes use of
    micro_batch: int  # on the most of them
    average: float = 0.0  # of a step over all sizes, where it was asked for

    @classmethod
    def of(cls, weighing: Weighing, size: Size, average: float = 0.0) -> Rival | None:
        group, step = weighing.group, weighing.step_on(size)
        if step is None:
            return None
        sizes = tuple(one.nodes for one in group.sizes)
        return cls(group.training, group.cut, group.units, step.seconds, sizes, step.micro_batch, average)


@dataclass(frozen=True)
class Short:
    """A cut of which no copy fits: the one that needs the least of its kind."""

    training: TrainingShape
    candidate: Candidate


@dataclass(frozen=True)
class Choice:
    """`average` and `least` are of a step over all sizes, the risk of running out of memory counted."""

    training: TrainingShape
    candidate: Candidate
    nodes: int  # the most that it makes use of
    seconds: float  # of a step on those, as predicted
    seconds_of_best: float  # of the best over all, on the most that that one makes use of
    best: bool  # whether it is the best itself, and not a simpler one
    average: float
    least: float
    groups: int  # how many cuts there were
    later: bool = False  # whether cuts that train at minNodes fit, and are too slow
    rival: Rival | None = None  # the fastest on the largest size alone
    beyond: Rival | None = None  # the best over all, where it begins at more than minNodes
    simpler: Rival | Short | None = None  # the best with the least model parallelism, where another is taken
    fewer: Short | None = None  # on fewer nodes, where host memory alone does not hold a copy's snapshots


def fastest(model: ModelShape, training: TrainingShape, inventory: Inventory) -> Choice | None:
    """None when nothing fits."""
    scales = Scales(model, inventory)
    every = [Weighing(scales, group) for group in all_groups(model, training, inventory)]
    free = weighed(every)
    if free.best is None:
        return None
    outcome = _soonest(every, inventory, free.best[0], free.best[1].on_largest[1]) or free
    average, found = _simplest(outcome)
    group = found.group
    candidate = found.candidate
    if candidate is None:
        raise RuntimeError(f"{group.cut} was weighed, and now it has no work")
    first = group.sizes[0].nodes
    return Choice(
        group.training,
        candidate,
        found.on_largest[0].nodes,
        found.predicted,
        outcome.near[0][1].predicted,
        best=found is outcome.near[0][1],
        average=average,
        least=outcome.near[0][0],
        groups=outcome.groups,
        later=first > inventory.min_nodes
        and any(one.possible for one in every if one.group.sizes[0].nodes == inventory.min_nodes),
        rival=_rival(every, found),
        beyond=_beyond(free, first, average),
        simpler=_simpler(every, found),
        fewer=_fewer(every, found, model, training, inventory),
    )


def _soonest(
    every: list[Weighing], inventory: Inventory, least: float, on_largest: float
) -> Outcome[Weighing] | None:
    """The best of the cuts that begin at the fewest nodes of all that are worth it: on average, and if they do not
    train at minNodes either, on the largest size too. `least`, `on_largest`: seconds of the best of all.
    """
    classes: dict[int, list[Weighing]] = {}
    for one in every:
        classes.setdefault(one.group.sizes[0].nodes, []).append(one)
    for first in sorted(classes):
        promised = first == inventory.min_nodes
        worth = WORTH if promised else WORTH_LATER
        outcome = refine_first(classes[first], near=NEARLY, limit=worth * least)
        if outcome.best is None:
            continue
        if promised or _simplest(outcome)[1].on_largest[1] <= worth * on_largest:
            return outcome
    return None


def _simplest(outcome: Outcome[Weighing]) -> tuple[float, Weighing]:
    most = NEARLY * outcome.near[0][1].on_largest[1]
    return min(
        (entry for entry in outcome.near if entry[1].on_largest[1] <= most),
        key=lambda entry: (_simplicity(entry[1].group), entry[0]),
    )


def _rival(every: list[Weighing], chosen: Weighing) -> Rival | None:
    """The fastest on the largest size, if it is faster than `chosen` by more than counts."""
    outcome = best_first(every, lambda one: one.largest_bound, Weighing.largest)
    if outcome.best is None or outcome.best[0] * NEARLY >= chosen.on_largest[1]:
        return None
    found = outcome.best[1]
    return Rival.of(found, found.group.sizes[-1])


def _beyond(free: Outcome[Weighing], first: int, average: float) -> Rival | None:
    """What would be taken if the run began at more than `first` nodes, if that is better by more than counts."""
    if free.best is None or free.best[0] * NEARLY >= average:
        return None
    found = _simplest(free)[1]
    return Rival.of(found, found.on_largest[0]) if found.group.sizes[0].nodes > first else None


def _simpler(every: list[Weighing], chosen: Weighing) -> Rival | Short | None:
    """What the least model parallelism that is allowed would do, if `chosen` has more."""
    least = min(_parallelism(one) for one in every)
    if _parallelism(chosen) == least:
        return None
    some = [one for one in every if _parallelism(one) == least]
    outcome = refine_first(some)
    if outcome.best is not None and outcome.best[0] < float("inf"):
        average, found = outcome.best
        return Rival.of(found, found.on_largest[0], average)
    return _least(some)


def _parallelism(weighing: Weighing) -> int:
    return weighing.group.cut.tensor * weighing.group.cut.pipeline


def _fewer(
    every: list[Weighing], chosen: Weighing, model: ModelShape, training: TrainingShape, inventory: Inventory
) -> Short | None:
    """What would be taken if hosts had memory enough, where that is a copy on fewer nodes."""
    node, units = inventory.node, chosen.group.units
    if not node.host_memory_bytes or all(
        one.possible or one.candidate is None or not fits_device(one.candidate.bill, node)
        for one in every
        if one.group.units < units
    ):
        return None
    free = fastest(model, training, replace(inventory, node=replace(node, host_memory_bytes=0)))
    if free is None or free.candidate.units >= units or fits(free.candidate.bill, node):
        return None
    return Short(free.training, free.candidate)


def _least(some: list[Weighing]) -> Short | None:
    """The one that needs the least memory."""
    found = [(one.candidate, one.group.training) for one in some if one.candidate is not None]
    if not found:
        return None
    candidate, training = min(found, key=lambda entry: (entry[0].bill.total, entry[0].bill.host))
    return Short(training, candidate)


def weighed(every: Iterable[Weighing]) -> Outcome[Weighing]:
    """The best over all sizes, and those that are nearly as good."""
    return refine_first(every, near=NEARLY)


def all_groups(model: ModelShape, training: TrainingShape, inventory: Inventory) -> list[Group]:
    """Every cut that is allowed and whose copies fill a size of the run."""
    processes, found = inventory.node.processes, []
    for one in variants(training):
        degrees = pairs(model, one, processes)
        for units in range(1, inventory.max_nodes + 1):
            if inventory.max_nodes // units * units < inventory.min_nodes:
                continue
            for tensor, pipeline in degrees:
                whole = rules.cut_of(one, processes, units, tensor=tensor, pipeline=pipeline)
                if whole is None or (pipeline == 1 and one.schedule != training.schedule):
                    continue  # without a pipeline all schedules are the same
                for cut in _shards(whole, units):
                    sizes = sizes_of(one, cut, units, inventory)
                    if sizes:
                        found.append(Group(one, cut, units, sizes))
    return found


def _simplicity(group: Group) -> tuple[int, int, int, int, bool]:
    cut = group.cut
    mode = RECOMPUTATION.index(group.training.activation_checkpointing)
    return (group.units, cut.tensor * cut.pipeline, mode, cut.pipeline, cut.schedule != "1F1B")


def _shards(whole: Cut, units: int) -> Iterable[Cut]:
    """A copy may be cut into fewer shards than a node has ranks for; then a node holds several. A pipeline's is not:
    its stages would no longer lie as the rules say.
    """
    if units > 1 or whole.pipeline > 1:
        return (whole,)
    return tuple(replace(whole, shard=shard) for shard in rules.divisors(whole.shard))


def variants(training: TrainingShape) -> list[TrainingShape]:
    """With each schedule and recomputation that is left open, the simplest first."""
    modes = (
        RECOMPUTATION if training.activation_checkpointing == "Auto" else (training.activation_checkpointing,)
    )
    schedules = [training.schedule]
    if training.any_schedule:
        schedules = ["1F1B", "Interleaved1F1B"] + ([] if training.mixed else ["ZBV"])
    return [
        replace(training, activation_checkpointing=mode, schedule=schedule)
        for mode in modes
        for schedule in schedules
    ]
