"""Why each choice of a plan was made, as sentences. Shown in status and by `explain`; decides nothing.

Called by the search with the numbers that it decided on, so that a reason cannot say something else than the
plan does.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainingrun.planner.candidates import Candidate, Split, split
from trainingrun.planner.fastest import Choice, Rival, Short
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import available_bytes, fits_device, host_available_bytes, margin_bytes
from trainingrun.planner.text import counted, human_bytes, human_seconds
from trainingrun.planner.types import Inventory, NodeShape, PlannedRung, PlanPath, TrainingShape
from trainingrun.protocol.records import Rung


def of_cut(
    training: TrainingShape,
    inventory: Inventory,
    chosen: Candidate,
    tried: list[Candidate],
    useful: Sequence[int],
    choice: Choice | None = None,
) -> str:
    """Why this tensor and pipeline, and how many nodes hold a copy. `useful`: the sizes that are of use, ascending.
    `choice`: where speed decided; `tried`: where the first that fits was taken.
    """
    cut = chosen.cut
    if cut.zero:
        return _of_zero(training, inventory, chosen, tried)
    name = f"tensor {cut.tensor}, pipeline {cut.pipeline}"
    name += f" ({cut.schedule})" if cut.stages > cut.pipeline else ""
    name += f", context {cut.context}" if cut.context > 1 else ""
    pinned = [f"{axis} {degree}" for axis, degree in sorted(training.pinned.items())]
    if pinned:
        why = f"{' and '.join(pinned)} pinned"
    elif cut.tensor == 1 and cut.pipeline == 1:
        why = "data parallelism alone fits"
    elif choice is not None:
        why = _of_simpler(choice, chosen, useful, inventory)
    else:
        why = _of_first(training, inventory, chosen, tried[0])
    if choice is None:
        why += f"; a process needs at least {human_bytes(chosen.bill.total)} of {usable_text(inventory.node)}"
    if chosen.units > 1:
        why += f"; a copy takes {chosen.units} nodes"
    if choice is not None and choice.fewer is not None:
        fewer = choice.fewer.candidate
        why += f" (on {fewer.units} it {_lacks(fewer, inventory.node)})"
    if useful and useful[0] > inventory.min_nodes:
        why += f", so training starts at {useful[0]} nodes"
    return f"{name}: {why}{_pace(inventory, useful, choice)}"


def _of_simpler(choice: Choice, chosen: Candidate, useful: Sequence[int], inventory: Inventory) -> str:
    """What is wrong with less model parallelism. Each figure is of one cut, which is named."""
    other = choice.simpler
    if other is None:
        return f"the least that {counted(inventory.min_nodes, 'node')} and the batch allow"
    if isinstance(other, Short):
        micro_batch = other.candidate.micro_batch
        return f"{_name(other.candidate.cut, other.training, micro_batch)} {_lacks(other.candidate, inventory.node)}"
    name = _name(other.cut, other.training, other.micro_batch)
    if _too_small_for_all(other.training, inventory, other.cut, other.units):
        return f"{name} fits, but {_too_small(other.training, inventory)}"
    if useful and other.sizes[0] > useful[0]:
        return f"{name} fits, but would start at {counted(other.sizes[0], 'node')}"
    slower = other.average / choice.average - 1.0
    if slower > 0.005:
        return f"{name} fits, but is {100 * slower:.0f} % slower"
    if other.units > chosen.units:
        return f"{name} is as fast, but a copy would take {other.units} nodes"
    return f"{name} fits, but fills {len(other.sizes)} sizes"


def _of_first(training: TrainingShape, inventory: Inventory, chosen: Candidate, simplest: Candidate) -> str:
    """Of the first that fits, in the order of the search."""
    if not simplest.fits:
        name = _name(simplest.cut, training, simplest.micro_batch)
        return f"{name} {_lacks(simplest, inventory.node)}; this is the nearest that fits"
    less = simplest.cut.tensor * simplest.cut.pipeline < chosen.cut.tensor * chosen.cut.pipeline
    if _too_small_for_all(training, inventory, simplest.cut, simplest.units):
        name = f"tensor {simplest.cut.tensor}, pipeline {simplest.cut.pipeline}"
        if less and simplest.units == chosen.units:
            return f"with {name} {_too_small(training, inventory)}"
    return "the first that fits"


def _too_small_for_all(training: TrainingShape, inventory: Inventory, cut: Cut, units: int) -> bool:
    """Whether the batch leaves ranks of the largest size without work."""
    nodes = inventory.max_nodes // units * units
    replicate = cut.copies_on(nodes, inventory.node.processes)
    return not replicate or split(training, cut, replicate, micro_batch=1) is None


def _too_small(training: TrainingShape, inventory: Inventory) -> str:
    batch = counted(training.global_batch_sequences, "sequence")
    return f"a batch of {batch} is too small to keep {counted(inventory.max_nodes, 'node')} busy"


def _lacks(candidate: Candidate, node: NodeShape) -> str:
    """What a cut that does not fit would need, and what there is."""
    if fits_device(candidate.bill, node):
        needs = human_bytes(candidate.bill.host * node.processes)
        there = human_bytes(max(0, host_available_bytes(node)))
        return f"needs {needs} of host memory a node for snapshots, of {there}"
    there = human_bytes(available_bytes(node) - margin_bytes(node))
    return f"needs {human_bytes(candidate.bill.total)} a process, of {there}"


def _pace(inventory: Inventory, useful: Sequence[int], choice: Choice | None) -> str:
    """What decided on accelerators, and what the cut that is fastest on the largest size would do instead. What the
    average is of: `planner.sizes`.
    """
    if choice is None:
        return ""
    least, most = inventory.min_nodes, inventory.max_nodes
    sizes, groups = most - least + 1, counted(choice.groups, "cut")
    seconds = f"{human_seconds(choice.seconds)} a step on {counted(choice.nodes, 'node')}"
    which = "the fastest" if choice.best else "nearly the fastest"
    if sizes == 1:
        return f"; {seconds}, {which} of {groups}"
    text = f"; fills {len(useful)} of {sizes} sizes, {seconds}, on average {which} of {groups}"
    if useful and useful[0] == least:
        text += f" that begin at {least}"
    if choice.later:
        return text + f"; to begin at {counted(least, 'node')} would take more than a fourth more time"
    if choice.beyond:
        return text + f"; with minNodes {choice.beyond.sizes[0]}: {_rival(choice.beyond, choice)}"
    if choice.rival:
        return (
            text + f"; for {counted(most, 'node')} alone: {_rival(choice.rival, choice)}, fills "
            f"{len(choice.rival.sizes)}"
        )
    return text


def _rival(rival: Rival, choice: Choice) -> str:
    """What is different with it; all else is as in the plan."""
    other, seconds = choice.simpler, f"({human_seconds(rival.seconds)} on {rival.sizes[-1]})"
    if isinstance(other, Rival) and (other.cut, other.training) == (rival.cut, rival.training):
        return f"that one {seconds}"
    cut, mine, mode = rival.cut, choice.candidate.cut, rival.training.activation_checkpointing
    named = [
        (f"tensor {cut.tensor}", cut.tensor != mine.tensor),
        (f"pipeline {cut.pipeline}", cut.pipeline != mine.pipeline),
        (f"shard {cut.shard}", cut.shard != mine.shard),
        (f"micro-batch {rival.micro_batch}", True),
        (f"recompute {mode}", mode != choice.training.activation_checkpointing),
    ]
    return f"{', '.join(name for name, told in named if told)} {seconds}"


def _name(cut: Cut, training: TrainingShape, micro_batch: int) -> str:
    """As `what-if` takes them."""
    mode = training.activation_checkpointing
    return (
        f"tensor {cut.tensor}, pipeline {cut.pipeline}, shard {cut.shard}, micro-batch {micro_batch}, "
        f"recompute {mode}"
    )


def _of_zero(training: TrainingShape, inventory: Inventory, chosen: Candidate, tried: list[Candidate]) -> str:
    needs = human_bytes(chosen.bill.total)
    there = usable_text(inventory.node)
    name = f"engine DeepSpeed, ZeRO {chosen.cut.zero}"
    name += f", offload {training.offload}" if training.offload != "None" else ""
    if training.zero_stage is not None:
        return f"{name}: the stage is pinned; a process needs at least {needs} of {there}"
    lower = [one for one in tried if one.cut.zero < chosen.cut.zero]
    if not lower:
        return f"{name}: the lowest stage fits: a process needs at least {needs} of {there}"
    return (
        f"{name}: at stage {lower[-1].cut.zero} a process needs {human_bytes(lower[-1].bill.total)} of {there}; "
        f"this is the lowest that fits ({needs})"
    )


def usable_text(node: NodeShape) -> str:
    limit = available_bytes(node)
    return f"{human_bytes(limit - margin_bytes(node))} (limit {human_bytes(limit)})"


def of_sharding(cut: Cut, replicate: int, units: int) -> str:
    name = f"shard {cut.shard}, replicate {replicate}"
    if cut.zero:
        return f"{name}: ZeRO cuts the state by all processes, so the run keeps its size"
    if cut.pipeline > 1:
        stages = f"pipeline stages lie on consecutive ranks, each sharded over {cut.shard}"
        where = "each node holds a whole copy of the state"
        return f"{name}: {stages}; {where if units == 1 else f'a copy of the state takes {units} nodes'}"
    if units == 1:
        if cut.shard == 1:
            return f"{name}: each node holds a whole copy of the state"
        return f"{name}: sharded inside a node, so that each node holds a whole copy of the state"
    return f"{name}: a copy of the state does not fit in one node, so it is sharded over {units}"


def of_batch(batch: Split, data: int, training: TrainingShape) -> str:
    text = (
        f"micro-batch {batch.micro_batch} x accumulation {batch.accumulation} x data {data} = "
        f"{batch.micro_batch * batch.accumulation * data} sequences for a global batch of "
        f"{training.global_batch_sequences}"
    )
    if batch.padding:
        text += f"; {batch.padding} of them weigh nothing"
    return text


def of_joining(joining: int, seconds: float) -> str:
    """Bytes that a node loads from others when it joins, in so many seconds; nothing to say where it cannot."""
    if not joining:
        return ""
    return (
        f"; a node that joins loads {human_bytes(joining)} from others, {human_seconds(seconds)} by its link"
    )


def of_activations(training: TrainingShape) -> list[str]:
    """Nothing to say where all activations are kept."""
    which = {"Selective": "every second layer is", "Full": "every layer is"}.get(
        training.activation_checkpointing
    )
    return [f"activations: {which} computed twice, and keeps only its input"] if which else []


def of_recomputation(least: PlanPath) -> str:
    """What recomputation is for: that the run begins at fewer nodes than the path with less of it."""
    mode = least.rungs[0].rung.activation_checkpointing
    return f"; with recomputation {mode} training would start at {least.begins} nodes"


def of_use(smaller: Rung | None) -> str:
    if smaller is None:
        return "useful: every rank has work"
    return f"useful: every rank has work, and less of it than on {counted(smaller.nodes, 'node')}"


def too_small(candidate: Candidate, nodes: int) -> str:
    holds = "does not hold" if nodes == 1 else "do not hold"
    return f"{counted(nodes, 'node')} {holds} a copy of the state as it is cut: it takes {candidate.units}"


def uneven(candidate: Candidate, nodes: int) -> str:
    used = nodes // candidate.units * candidate.units
    return f"only whole copies of {candidate.units} nodes are useful: {nodes - used} of {nodes} would be idle"


def too_little_work(cut: Cut, replicate: int, training: TrainingShape) -> str:
    data, batch = replicate * cut.shard, training.global_batch_sequences
    if data > batch:
        return f"the global batch of {counted(batch, 'sequence')} is too small for {data} data ranks"
    return (
        f"{batch} sequences over {data} data ranks are fewer than the {cut.pipeline} micro-batches that "
        "fill the pipeline"
    )


def slower(seconds: float, before: PlannedRung) -> str:
    """Nothing to say where more nodes make the step shorter."""
    if seconds < before.step_seconds:
        return ""
    nodes = counted(before.rung.nodes, "node")
    return f"a step would take {human_seconds(seconds)}, and {human_seconds(before.step_seconds)} on {nodes}"


def no_faster(chosen: Split, smaller: Rung) -> str:
    nodes, share = counted(smaller.nodes, "node"), counted(chosen.per_rank, "sequence")
    if chosen.per_rank == smaller.micro_batch * smaller.accumulation:
        return f"no faster than {nodes}: {share} a rank either way"
    return f"slower than {nodes}: {share} a rank"
