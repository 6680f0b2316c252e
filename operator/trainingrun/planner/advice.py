"""What to say when no plan fits: what it needs, what there is, and the nearest that would fit. All of it is
computed.

Called by the search, with every candidate that it tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainingrun.planner import rules, zero
from trainingrun.planner.candidates import Candidate, candidates, pairs, weigh
from trainingrun.planner.errors import NothingFits, PlanError, PlanInputError
from trainingrun.planner.hardware.gpus import GIB, GPUS
from trainingrun.planner.memory import available_bytes, fits, host_available_bytes, margin_bytes
from trainingrun.planner.text import counted, cut_name, human_bytes
from trainingrun.planner.types import Inventory, MemoryBill, ModelShape, NodeShape, TrainingShape

MOST_NODES = 4096  # no advice beyond
MEMORY_STEP = 1 << 30  # memory is advised in whole Gi


def nothing_fits(
    model: ModelShape, training: TrainingShape, inventory: Inventory, tried: list[Candidate]
) -> PlanError:
    """The error to raise."""
    if not tried:
        return _batch_too_small(model, training, inventory)
    node = inventory.node
    best = min(tried, key=lambda candidate: candidate.bill.total)
    options = [_more_memory(node, best), _more_nodes(model, training, inventory)]
    options += [_other_accelerators(node, best), _computed_twice(model, training, inventory)]
    fix = ", or ".join(option for option in options if option) or _shorter_sequence(
        model, training, inventory
    )
    device_fits = best.bill.total + margin_bytes(node) <= available_bytes(node)
    if device_fits:
        path = "spec.resources.perNode.memory"
        needs = best.bill.host * node.processes
        message = (
            f"no plan fits: a node's memory snapshots need {human_bytes(needs)} beside its accelerators, "
            f"with {cut_name(best.cut)}, but {human_bytes(max(0, host_available_bytes(node)))} are there"
        )
        value = human_bytes(node.host_memory_bytes)
    else:
        path = (
            "spec.resources.perNode.memory"
            if node.device == "cpu"
            else f"spec.resources.perNode[{node.device}]"
        )
        message = (
            f"no plan fits: a process needs at least {parts(best.bill)} = {human_bytes(best.bill.total)} "
            f"with {cut_name(best.cut)}, but has {human_bytes(available_bytes(node))}, of which "
            f"{human_bytes(margin_bytes(node))} stay free"
        )
        value = f"{human_bytes(node.memory_bytes)} for {node.processes} processes"
    nearest = f"; nearest that fits: {fix}" if fix else "; nothing near fits"
    return NothingFits(
        path,
        value,
        message + nearest,
        f"use {fix}" if fix else "use a smaller model, or larger nodes",
        bill=best.bill,
        available_bytes=available_bytes(node),
    )


def no_size(training: TrainingShape, inventory: Inventory, best: Candidate, reach: int) -> PlanError:
    """A copy fits, but no size of the run holds whole ones that all have work. `reach`: the most nodes that do."""
    least, most, units = inventory.min_nodes, inventory.max_nodes, best.units
    sizes = counted(most, "node") if least == most else f"{least} to {most} nodes"
    if most // units * units < least:
        return NothingFits(
            "spec.scale.minNodes",
            least,
            f"no plan fits: with {cut_name(best.cut)} a copy of the state fits on {counted(units, 'node')}, and whole "
            f"copies never fill {sizes}; nearest that fits: minNodes {reach}",
            f"set spec.scale.minNodes to {reach} or less",
        )
    nodes = -(-least // units) * units
    data = best.cut.copies_on(nodes, inventory.node.processes) * best.cut.shard
    needed = data * best.cut.pipeline
    batch = training.global_batch_sequences
    return PlanInputError(
        "spec.training.globalBatch",
        counted(batch, "sequence"),
        f"with {cut_name(best.cut)} {counted(nodes, 'node')} make {counted(data, 'data rank')}, which need {needed} "
        f"sequences, but the global batch has {batch}: enough for {counted(reach, 'node')}, and the run has at least "
        f"{least}; nearest that fits: {needed}",
        f"raise the global batch to {needed} sequences, or set spec.scale.minNodes to {reach}",
    )


def parts(bill: MemoryBill) -> str:
    """All that is there, as a sum, the largest first."""
    names = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "reserved", "snapshots")
    sizes = sorted(((getattr(bill, name), name) for name in names), reverse=True)
    return " + ".join(f"{name} {human_bytes(size)}" for size, name in sizes if size)


def _more_memory(node: NodeShape, best: Candidate) -> str:
    """Of the pod. Accelerators do not grow, but their hosts may."""
    if node.device == "cpu":
        bigger = _least_gi(best.bill, lambda memory: replace(node, memory_bytes=memory))
    elif node.host_memory_bytes and best.bill.total + margin_bytes(node) <= available_bytes(node):
        bigger = _least_gi(best.bill, lambda memory: replace(node, host_memory_bytes=memory))
    else:
        return ""
    return f"perNode.memory {bigger}Gi"


def _least_gi(bill: MemoryBill, node_with: Callable[[int], NodeShape]) -> int:
    """The least whole number of Gi with which `bill` fits. By halving: more memory never fits less."""
    low, high = 0, 1
    while not fits(bill, node_with(high * MEMORY_STEP)):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(bill, node_with(middle * MEMORY_STEP)):
            high = middle
        else:
            low = middle
    return high


def _more_nodes(model: ModelShape, training: TrainingShape, inventory: Inventory) -> str:
    limit = min(
        MOST_NODES,
        training.global_batch_sequences * max(rules.dividing_tensors(model, training)) * model.layers,
    )
    least = inventory.max_nodes + 1 if training.engine == zero.DEEPSPEED else 1
    if least == 1 and not _ever_fits(model, training, inventory.node, limit):
        return ""
    for candidate in candidates(model, training, inventory.node, max_units=limit, min_units=least):
        if candidate.units > inventory.max_nodes and candidate.fits:
            both = "minNodes and maxNodes" if candidate.cut.zero else "maxNodes"
            return f"{both} {candidate.units}"
    return ""


def _ever_fits(model: ModelShape, training: TrainingShape, node: NodeShape, limit: int) -> bool:
    """Whether any cut fits when its state is shared by as many nodes as can be: more shards never need more."""
    for tensor, pipeline in pairs(model, training, node.processes):
        units = 1 << (limit.bit_length() - 1)
        while units:
            cut = rules.cut_of(training, node.processes, units, tensor=tensor, pipeline=pipeline)
            found = weigh(model, training, node, cut, units) if cut else None
            if found is not None:
                if found.fits:
                    return True
                break
            units //= 2
    return False


def _other_accelerators(node: NodeShape, best: Candidate) -> str:
    if node.device == "cpu":
        return ""
    bigger = []
    for entry in GPUS:
        memory = int(entry.memory_gib * GIB) * node.processes
        if entry.resource == node.device and fits(best.bill, replace(node, memory_bytes=memory)):
            bigger.append(entry)
    return f"accelerators such as {min(bigger, key=lambda entry: entry.memory_gib).name}" if bigger else ""


def _computed_twice(model: ModelShape, training: TrainingShape, inventory: Inventory) -> str:
    """Where the run asked for less of it: the least with which something fits."""
    most = inventory.max_nodes
    least = most if training.engine == zero.DEEPSPEED else 1
    for mode in ("Selective", "Full")[
        ("None", "Selective", "Full").index(training.activation_checkpointing) :
    ]:
        asked = replace(training, activation_checkpointing=mode)
        found = candidates(model, asked, inventory.node, max_units=most, min_units=least)
        if any(candidate.fits for candidate in found):
            return f"parallelism.activationCheckpointing {mode}"
    return ""


def _shorter_sequence(model: ModelShape, training: TrainingShape, inventory: Inventory) -> str:
    """A last resort, since it changes what is trained: halve the sequence until something fits."""
    length = training.sequence_length // 2
    while length:
        shorter = replace(training, sequence_length=length)
        most = inventory.max_nodes
        least = most if training.engine == zero.DEEPSPEED else 1
        found = candidates(model, shorter, inventory.node, max_units=most, min_units=least)
        if any(candidate.fits for candidate in found):
            return f"sequenceLength {length}"
        length //= 2
    return ""


def _batch_too_small(model: ModelShape, training: TrainingShape, inventory: Inventory) -> PlanError:
    """Every cut has more data ranks, or a longer pipeline, than the batch has sequences for."""
    processes, batch = inventory.node.processes, training.global_batch_sequences
    if training.engine == zero.DEEPSPEED:
        world = inventory.max_nodes * processes
        return PlanInputError(
            "spec.training.globalBatch",
            f"{batch} sequences",
            f"{inventory.max_nodes} nodes x {processes} processes = {world} data ranks need {world} sequences, but the "
            f"global batch has {batch}; nearest that fits: {world}",
            f"raise the global batch to {world} sequences, or use fewer processes",
        )
    pinned = training.pinned
    tensors = (
        [pinned["tensor"]]
        if "tensor" in pinned
        else rules.tensor_degrees(model, training, processes // training.context)
    )
    pipelines = [pinned["pipeline"]] if "pipeline" in pinned else rules.pipeline_degrees(model, training)
    least, tensor, pipeline, shard = min(
        (shard * p, t, p, shard)
        for t in tensors
        for p in pipelines
        for units in range(1, inventory.max_nodes + 1)
        if (shard := rules.shard_degree(processes, t * training.context, p, units))
    )
    filled = f" x {pipeline} micro-batches that fill the pipeline" if pipeline > 1 else ""
    return PlanInputError(
        "spec.training.globalBatch",
        f"{batch} sequences",
        f"a node's {processes} processes make {shard} data ranks (tensor {tensor}, pipeline {pipeline})"
        f"{filled}, which need {least} sequences, but the global batch has {batch}; "
        f"nearest that fits: {least}",
        f"raise the global batch to {least} sequences, or lower the processes of a node",
    )
