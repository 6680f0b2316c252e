"""The cut that trains fastest on the largest size of a run of accelerators, of all that are allowed and fit.

What is tried: tensor and pipeline degrees, the schedule of the pipeline (if it was left open), shards inside a node
and over whole nodes, recomputation (if it was left open), and for each of them every micro-batch. Only cuts whose
copies fill as many sizes of the run as any that fits can: a run of 1..64 nodes is for those of one node. Of nearly
equal ones the simpler is taken: fewest nodes for a copy (most copies), least recomputation, least model parallelism.

Exact: what is not looked at is proven to be slower (`best_first`, `time.least_seconds`). Pure and deterministic; called
by the search, for nodes with accelerators. On CPU nodes, whose processes share cores and network, the simplest cut
that fits is taken instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from trainingrun.planner import rules
from trainingrun.planner.best_first import Outcome, best_first
from trainingrun.planner.candidates import Candidate, micro_batches, pairs, split, weigh
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import fits, memory_bill
from trainingrun.planner.time import least_seconds, predict, sequence_seconds
from trainingrun.planner.types import Inventory, ModelShape, TrainingShape

Slopes = dict[
    tuple[str, int, int, str], float
]  # seconds of a sequence by recomputation, tensor, pipeline, schedule
NEARLY = 1.05  # predictions of steps err by more than this
RECOMPUTATION = ("None", "Selective", "Full")


@dataclass(frozen=True)
class Group:
    """A cut with all its micro-batches."""

    training: TrainingShape  # with a schedule and a recomputation of its own
    cut: Cut
    units: int
    nodes: int  # the most that its copies fill, and its batch keeps busy
    replicate: int


@dataclass(frozen=True)
class Choice:
    training: TrainingShape
    candidate: Candidate
    seconds: float
    nodes: int
    least: float  # seconds of the fastest, which may be less simple
    groups: int  # how many cuts there were


def fastest(model: ModelShape, training: TrainingShape, inventory: Inventory) -> Choice | None:
    """None when nothing fits."""
    for units in _by_coverage(inventory):
        outcome = weighed(model, inventory, _groups(model, training, inventory, units))
        if outcome.best is not None:
            return _choice(model, inventory, outcome)
    return None


def all_groups(model: ModelShape, training: TrainingShape, inventory: Inventory) -> list[Group]:
    """Every cut that is allowed, whatever sizes it fills."""
    return _groups(model, training, inventory, range(1, inventory.max_nodes + 1))


def _choice(model: ModelShape, inventory: Inventory, outcome: Outcome[Group]) -> Choice:
    seconds, group = min(
        outcome.near, key=lambda entry: (_simplicity(entry[1]), entry[0], entry[1].cut.shard)
    )
    candidate = weigh(model, group.training, inventory.node, group.cut, group.units)
    if candidate is None:
        raise RuntimeError(f"{group.cut} was weighed, and now it has no work")
    return Choice(group.training, candidate, seconds, group.nodes, outcome.near[0][0], outcome.groups)


def weighed(model: ModelShape, inventory: Inventory, groups: list[Group]) -> Outcome[Group]:
    """The fastest of `groups` with their best micro-batch, and those that are nearly as fast."""
    slopes: Slopes = {}

    def members(group: Group) -> Iterator[tuple[float, Group]]:
        seconds = group_seconds(model, inventory, group)
        if seconds is not None:
            yield seconds, group

    return best_first(
        groups, lambda group: group_bound(model, inventory, group, slopes), members, near=NEARLY
    )


def group_bound(model: ModelShape, inventory: Inventory, group: Group, slopes: Slopes | None = None) -> float:
    """Seconds that no micro-batch beats. `slopes`: what was found for other cuts of the same model and inventory."""
    known: Slopes = {} if slopes is None else slopes
    node, cut, training = inventory.node, group.cut, group.training
    key = (training.activation_checkpointing, cut.tensor, cut.pipeline, cut.schedule)
    if key not in known:
        known[key] = sequence_seconds(model, training, node, cut)
    return least_seconds(model, training, node, cut, replicate=group.replicate, sequence_seconds=known[key])


def group_seconds(model: ModelShape, inventory: Inventory, group: Group) -> float | None:
    """Of the best micro-batch that fits; None when none does, also on the smallest size of the run."""
    node, cut, training, replicate = inventory.node, group.cut, group.training, group.replicate
    candidate = weigh(model, training, node, cut, group.units)
    if candidate is None or not candidate.fits:
        return None
    best: float | None = None
    for size in micro_batches(training, cut, replicate):
        found = split(training, cut, replicate, micro_batch=size)
        if found is None:
            break  # larger ones fill a pipeline even less
        of = {"replicate": replicate, "micro_batch": size, "accumulation": found.accumulation}
        if fits(memory_bill(model, training, node, cut, **of), node):
            seconds = predict(model, training, node, cut, **of).total
            best = seconds if best is None or seconds < best else best
    return best


def _simplicity(group: Group) -> tuple[int, int, int, int, bool]:
    cut = group.cut
    mode = RECOMPUTATION.index(group.training.activation_checkpointing)
    return (group.units, mode, cut.tensor * cut.pipeline, cut.pipeline, cut.schedule != "1F1B")


def _by_coverage(inventory: Inventory) -> list[list[int]]:
    """Nodes of a copy, by how many sizes of the run whole copies fill; the most first."""
    classes: dict[int, list[int]] = {}
    least, most = inventory.min_nodes, inventory.max_nodes
    for units in range(1, most + 1):
        classes.setdefault(most // units - (least - 1) // units, []).append(units)
    return [classes[sizes] for sizes in sorted(classes, reverse=True)]


def _groups(
    model: ModelShape, training: TrainingShape, inventory: Inventory, units: Iterable[int]
) -> list[Group]:
    processes, found = inventory.node.processes, []
    for one in variants(training):
        degrees = pairs(model, one, processes)
        for copy in units:
            for tensor, pipeline in degrees:
                whole = rules.cut_of(one, processes, copy, tensor=tensor, pipeline=pipeline)
                if whole is None or (pipeline == 1 and one.schedule != training.schedule):
                    continue  # without a pipeline all schedules are the same
                for cut in _shards(whole, copy):
                    nodes = busy_nodes(one, cut, copy, inventory)
                    if nodes:
                        replicate = cut.copies_on(nodes, processes)
                        found.append(Group(one, cut, copy, nodes, replicate))
    return found


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


def busy_nodes(training: TrainingShape, cut: Cut, units: int, inventory: Inventory) -> int:
    """Most nodes on which every rank has work; 0 when there is none."""
    for nodes in range(inventory.max_nodes // units * units, 0, -units):
        replicate = cut.copies_on(nodes, inventory.node.processes)
        if replicate and split(training, cut, replicate, micro_batch=1):
            return nodes
    return 0
