"""The plan for every size of a run. Pure, deterministic and fast; called by the controller and the CLI.

1. Refuse pins and batches that cannot be (`rules`). 2. Accelerators: take the fastest cut of all (`fastest`). CPU
nodes: take the first that fits, in the order of `candidates`; where the batch is too small for it on the largest
size, another that uses more nodes if it is faster. The cut is kept over the whole path, so that losing a node
re-wires and never reshapes, and one size at least makes use of it. 3. For each size: the micro-batch, the
predictions, the copies, and whether the size is worth anything.

It must never call a plan that does not fit in memory one that fits, nor promise a copy of the state that is
not there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainingrun.planner import advice, reasons, rules, zero
from trainingrun.planner.candidates import Candidate, Split, candidates, micro_batches, split
from trainingrun.planner.copies import copies
from trainingrun.planner.errors import PlanError
from trainingrun.planner.fastest import RECOMPUTATION, Choice, fastest
from trainingrun.planner.memory import available_bytes, fits, memory_bill, state_bytes_of_node
from trainingrun.planner.parameters import count_parameters
from trainingrun.planner.sizes import risk
from trainingrun.planner.time import predict
from trainingrun.planner.types import Inventory, ModelShape, PlannedRung, PlanPath, TrainingShape
from trainingrun.planner.weighing import peak_flops
from trainingrun.protocol.records import Rung

PLANNER_VERSION = "0.2.0"

FASTER = 1.1  # another cut must be this much faster before it replaces the simplest one that fits
GOOD_ENOUGH = 1.02  # a smaller micro-batch is taken when its step is at most this much slower than the best


@dataclass(frozen=True)
class Problem:
    model: ModelShape
    training: TrainingShape
    inventory: Inventory


def plan(model: ModelShape, training: TrainingShape, inventory: Inventory) -> PlanPath:
    """Raises PlanInputError when the question is wrong, NothingFits when no size of the inventory can do
    it. On CPU nodes layers are computed twice only where the run could not begin at so few nodes otherwise, or where
    it was asked for.
    """
    zero.check(training, inventory)
    rules.check_sequence(model, training)
    rules.check_pins(model, training, inventory)
    if inventory.node.device != "cpu" and training.engine != zero.DEEPSPEED:
        choice = fastest(model, training, inventory)
        if choice is not None:
            return _path(Problem(model, choice.training, inventory), choice.candidate, choice)
    if training.activation_checkpointing != "Auto":
        return _simplest(Problem(model, training, inventory))
    return _soonest(model, training, inventory)


def _soonest(model: ModelShape, training: TrainingShape, inventory: Inventory) -> PlanPath:
    """With the least recomputation of those that begin at the fewest nodes: minNodes is a promise."""
    best: PlanPath | None = None
    least: PlanPath | None = None  # recomputation
    nothing: PlanError | None = None
    for mode in RECOMPUTATION:
        try:
            path = _simplest(Problem(model, replace(training, activation_checkpointing=mode), inventory))
        except PlanError as error:
            nothing = error
            continue
        least = least or path
        if best is None or path.begins < best.begins:
            best = path
        if path.begins == inventory.min_nodes:
            break
    if best is None or least is None:
        raise nothing or RuntimeError("no recomputation was tried")
    if best is least:
        return best
    return replace(best, reason=best.reason + reasons.of_recomputation(least))


def _simplest(problem: Problem) -> PlanPath:
    tried = _tried(problem)
    fitting = [candidate for candidate in tried if candidate.fits]
    if not fitting:
        raise advice.nothing_fits(problem.model, problem.training, problem.inventory, tried)
    usable = [candidate for candidate in fitting if _usable(problem, candidate)]
    if not usable:
        best = max(fitting, key=lambda candidate: _reach(problem, candidate))
        raise advice.no_size(problem.training, problem.inventory, best, _reach(problem, best))
    return _path(problem, _choose(problem, usable), None, tried)


def _path(
    problem: Problem, chosen: Candidate, choice: Choice | None, tried: list[Candidate] | None = None
) -> PlanPath:
    """All sizes of one cut. `choice`: how it was found to be the fastest, where speed decided."""
    inventory = problem.inventory
    rungs: list[PlannedRung] = []
    splits: dict[int, Split | None] = {}
    for nodes in range(inventory.min_nodes, inventory.max_nodes + 1):
        rungs.append(_rung(problem, chosen, nodes, best_before=_last_useful(rungs), splits=splits))
    useful = [planned.rung.nodes for planned in rungs if planned.rung.useful]
    return PlanPath(
        rungs=tuple(rungs),
        parameters=count_parameters(problem.model),
        reason=reasons.of_cut(problem.training, inventory, chosen, tried or [], useful, choice),
        planner_version=PLANNER_VERSION,
    )


def _tried(problem: Problem) -> list[Candidate]:
    """Up to the fewest nodes on which a copy fits that a size of the run holds whole: cutting it over more nodes only
    costs copies.
    """
    tried: list[Candidate] = []
    least = enough = problem.inventory.max_nodes
    node = problem.inventory.node
    for candidate in candidates(problem.model, problem.training, node, max_units=enough, min_units=least):
        if candidate.units > enough:
            break
        tried.append(candidate)
        if candidate.fits and _usable(problem, candidate):
            enough = candidate.units
    return tried


def _choose(problem: Problem, fitting: list[Candidate]) -> Candidate:
    """The simplest that fits, unless the batch keeps it from the larger sizes and another is faster there."""
    chosen = fitting[0]
    reach = _reach(problem, chosen)
    if reach == problem.inventory.max_nodes // chosen.units * chosen.units:
        return chosen
    speed = _speed(problem, chosen, reach)
    for candidate in fitting[1:]:
        further = _reach(problem, candidate)
        if further > reach and _speed(problem, candidate, further) >= FASTER * speed:
            chosen, reach, speed = candidate, further, _speed(problem, candidate, further)
    return chosen


def _usable(problem: Problem, candidate: Candidate) -> bool:
    """Whether any size of the run holds whole copies that all have work."""
    return _reach(problem, candidate) >= problem.inventory.min_nodes


def _reach(problem: Problem, candidate: Candidate) -> int:
    """Most nodes on which every rank has work; at least one copy's."""
    units = candidate.units
    for nodes in range(problem.inventory.max_nodes // units * units, units, -units):
        replicate = candidate.cut.copies_on(nodes, problem.inventory.node.processes)
        if split(problem.training, candidate.cut, replicate, micro_batch=1):
            return nodes
    return units


def _speed(problem: Problem, candidate: Candidate, nodes: int) -> float:
    return _rung(problem, candidate, nodes, best_before=None).tokens_per_second


def _last_useful(rungs: list[PlannedRung]) -> PlannedRung | None:
    return next((planned for planned in reversed(rungs) if planned.rung.useful), None)


def _rung(
    problem: Problem,
    candidate: Candidate,
    nodes: int,
    *,
    best_before: PlannedRung | None,
    splits: dict[int, Split | None] | None = None,
) -> PlannedRung:
    """`nodes` that do not hold whole copies do what the next smaller size does, and are marked as useless. `splits`: of
    other sizes of the same cut, by their replicas.
    """
    known = {} if splits is None else splits
    cut, training, node = candidate.cut, problem.training, problem.inventory.node
    used = max(candidate.units, nodes // candidate.units * candidate.units)
    replicate = cut.copies_on(used, node.processes)
    if replicate not in known:
        known[replicate] = _split(problem, candidate, replicate)
    chosen = known[replicate]
    idle = _idle(candidate, nodes, replicate, chosen, training, best_before)
    # Ranks without work still take part with padding, so the numbers of a useless size are real ones.
    batch = chosen or Split(
        1, cut.pipeline, replicate * cut.shard * cut.pipeline - training.global_batch_sequences
    )
    times = predict(
        problem.model,
        training,
        node,
        cut,
        replicate=replicate,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
    )
    # Times of cores were measured on small models only: there no size is given up for them.
    if not idle and best_before is not None and node.device != "cpu":
        idle = reasons.slower(times.total, best_before)
    bill = memory_bill(
        problem.model,
        training,
        node,
        cut,
        replicate=replicate,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
    )
    kept = copies(problem.model, training, node, cut, replicate=replicate, nodes=used, bill=bill)
    joining = state_bytes_of_node(bill, node, cut) if kept.count > 1 else 0
    join_seconds = joining / node.link_bytes_per_second
    why = (
        reasons.of_sharding(cut, replicate, candidate.units),
        reasons.of_batch(batch, replicate * cut.shard, training),
        kept.reason + reasons.of_joining(joining, join_seconds),
        *reasons.of_activations(training),
        idle or reasons.of_use(best_before.rung if best_before else None),
    )
    tokens = training.global_batch_sequences * training.sequence_length
    world = replicate * cut.processes
    computed = training.global_batch_sequences + batch.padding
    return PlannedRung(
        rung=Rung(
            nodes=nodes,
            processes_per_node=node.processes,
            pipeline=cut.pipeline,
            replicate=replicate,
            shard=cut.shard,
            tensor=cut.tensor,
            micro_batch=batch.micro_batch,
            accumulation=batch.accumulation,
            padding_sequences=batch.padding,
            state_copies=kept.count,
            useful=not idle,
            reason=idle,
            context=cut.context,
            sequence_parallel=training.sequence_parallel and cut.tensor > 1,
            schedule=cut.schedule,
            buddies=kept.buddies,
            activation_checkpointing=training.activation_checkpointing.replace("Auto", "None"),
            engine=training.engine,
            zero_stage=cut.zero,
        ),
        memory=kept.bill,
        available_bytes=available_bytes(node),
        step_seconds=times.total,
        tokens_per_second=tokens / times.total,
        model_flops_per_step=times.flops,
        flops_utilisation=times.flops / (times.total * peak_flops(node, training.activation_bytes) * world),
        bubble=times.bubble,
        communication=times.communication / times.total,
        padding=batch.padding / computed,
        reasons=why,
        join_bytes=joining,
        join_seconds=join_seconds,
    )


def _split(problem: Problem, candidate: Candidate, replicate: int) -> Split | None:
    """The micro-batch with the shortest step, its risk to run out of memory counted, or the smallest that is nearly as
    good: memory is better left free.
    """
    cut, training, node = candidate.cut, problem.training, problem.inventory.node
    weighed: list[tuple[Split, float]] = []
    for size in micro_batches(training, cut, replicate):
        found = split(training, cut, replicate, micro_batch=size)
        if found is None:
            break  # larger ones fill a pipeline even less
        bill = memory_bill(
            problem.model,
            training,
            node,
            cut,
            replicate=replicate,
            micro_batch=size,
            accumulation=found.accumulation,
        )
        if not fits(bill, node):
            continue  # the last one, with nothing to accumulate, may fit again
        times = predict(
            problem.model,
            training,
            node,
            cut,
            replicate=replicate,
            micro_batch=size,
            accumulation=found.accumulation,
        )
        weighed.append((found, times.total * risk(bill, node, training.engine)))
    if not weighed:
        return None
    best = min(seconds for _, seconds in weighed)
    return next(found for found, seconds in weighed if seconds <= GOOD_ENOUGH * best)


def _idle(
    candidate: Candidate,
    nodes: int,
    replicate: int,
    chosen: Split | None,
    training: TrainingShape,
    best_before: PlannedRung | None,
) -> str:
    """Why this size is worth nothing, or an empty string."""
    if nodes < candidate.units:
        return reasons.too_small(candidate, nodes)
    if nodes % candidate.units:
        return reasons.uneven(candidate, nodes)
    if chosen is None:
        return reasons.too_little_work(candidate.cut, replicate, training)
    if best_before is not None:
        rung = best_before.rung
        if chosen.per_rank >= rung.micro_batch * rung.accumulation:
            return reasons.no_faster(chosen, rung)
    return ""
