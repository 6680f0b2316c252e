"""Why each choice of a plan was made, as sentences. Shown in status and by `explain`; decides nothing.

Called by the search with the numbers that it decided on, so that a reason cannot say something else than the
plan does.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainingrun.planner.candidates import Candidate, Split, split
from trainingrun.planner.fastest import Choice, Rival
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import available_bytes, margin_bytes
from trainingrun.planner.text import counted, human_bytes, human_seconds
from trainingrun.planner.types import Inventory, NodeShape, PlanPath, TrainingShape
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
    `choice`: where speed decided.
    """
    cut = chosen.cut
    if cut.zero:
        return _of_zero(training, inventory, chosen, tried)
    name = f"tensor {cut.tensor}, pipeline {cut.pipeline}"
    name += f" ({cut.schedule})" if cut.stages > cut.pipeline else ""
    name += f", context {cut.context}" if cut.context > 1 else ""
    pinned = [f"{axis} {degree}" for axis, degree in sorted(training.pinned.items())]
    there = usable_text(inventory.node)
    needs = f"a process needs at least {human_bytes(chosen.bill.total)} of {there}"
    simplest = tried[0]
    if pinned:
        why = f"{' and '.join(pinned)} pinned; {needs}"
    elif cut.tensor == 1 and cut.pipeline == 1:
        why = f"data parallelism alone fits: {needs}"
    elif not simplest.fits:
        less = f"tensor {simplest.cut.tensor}, pipeline {simplest.cut.pipeline}"
        why = (
            f"with {less} a process needs {human_bytes(simplest.bill.total)} of {there}; "
            f"this is {'one' if choice else 'the nearest'} that fits ({human_bytes(chosen.bill.total)})"
        )
    elif (
        _too_small_for_all(training, inventory, simplest)
        and simplest.units == chosen.units
        and simplest.cut.tensor * simplest.cut.pipeline < cut.tensor * cut.pipeline
    ):
        why = (
            f"with tensor {simplest.cut.tensor}, pipeline {simplest.cut.pipeline} a batch of "
            f"{counted(training.global_batch_sequences, 'sequence')} is too small to keep "
            f"{counted(inventory.max_nodes, 'node')} busy; {needs}"
        )
    else:
        why = needs
    if chosen.units > 1:
        why += f"; one copy of the state takes {chosen.units} nodes"
    if useful and useful[0] > inventory.min_nodes:
        why += f", so training starts at {useful[0]} nodes"
    return f"{name}: {why}{_pace(inventory, useful, choice)}"


def _too_small_for_all(training: TrainingShape, inventory: Inventory, candidate: Candidate) -> bool:
    """Whether the batch leaves ranks of the largest size without work."""
    nodes = inventory.max_nodes // candidate.units * candidate.units
    replicate = candidate.cut.copies_on(nodes, inventory.node.processes)
    return not replicate or split(training, candidate.cut, replicate, micro_batch=1) is None


def _pace(inventory: Inventory, useful: Sequence[int], choice: Choice | None) -> str:
    """What decided on accelerators, and what the cut that is fastest on the largest size would do instead."""
    if choice is None:
        return ""
    least, most = inventory.min_nodes, inventory.max_nodes
    sizes, groups = most - least + 1, counted(choice.groups, "cut")
    if sizes > 1 and useful and useful[0] == least:
        groups += f" that begin at {counted(least, 'node')}"
    seconds = f"{human_seconds(choice.seconds)} a step on {counted(choice.nodes, 'node')}"
    if sizes == 1:
        if choice.best:
            return f"; {seconds}, the fastest of {groups}"
        return (
            f"; {seconds}, the simplest that is nearly as fast as the fastest of {groups} "
            f"({human_seconds(choice.seconds_of_best)})"
        )
    which = "the best" if choice.best else "the simplest that is nearly as good as the best"
    text = (
        f"; fills {len(useful)} of {sizes} sizes, {seconds}: {which} of {groups} by tokens a second, averaged over "
        f"{least} to {most} nodes ({most} count half)"
    )
    if choice.later:
        text += f"; to begin at {counted(least, 'node')} would take more than a fourth more time"
    if choice.beyond:
        beyond = choice.beyond
        text += (
            f"; to begin at {useful[0]} costs speed: with minNodes {beyond.sizes[0]} it would be {_name(beyond.cut)} "
            f"({human_seconds(beyond.seconds)} a step on {counted(beyond.sizes[-1], 'node')})"
        )
    return text + (_of_rival(choice.rival, useful, inventory) if choice.rival else "")


def _name(cut: Cut) -> str:
    return f"tensor {cut.tensor}, pipeline {cut.pipeline}, shard {cut.shard}"


def _of_rival(rival: Rival, useful: Sequence[int], inventory: Inventory) -> str:
    sizes = inventory.max_nodes - inventory.min_nodes + 1
    less = "only " if len(rival.sizes) < len(useful) else ""
    begins = rival.sizes[0]
    later = f", from {begins} on" if useful and begins > useful[0] else ""
    return (
        f"; the fastest on {counted(inventory.max_nodes, 'node')} alone would be {_name(rival.cut)} "
        f"({human_seconds(rival.seconds)} a step), but it fills {less}{len(rival.sizes)} of {sizes} sizes{later}"
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
    return f"{counted(nodes, 'node')} cannot hold a copy of the state: it takes {candidate.units}"


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


def no_faster(chosen: Split, smaller: Rung) -> str:
    nodes, share = counted(smaller.nodes, "node"), counted(chosen.per_rank, "sequence")
    if chosen.per_rank == smaller.micro_batch * smaller.accumulation:
        return f"no faster than {nodes}: {share} a rank either way"
    return f"slower than {nodes}: {share} a rank"
