"""Predicted peak memory of one process of our own trainer, by part, on the fullest rank. Pure arithmetic on shapes.

Parameters (`models.counts`), what a layer keeps (`cost.activations`) and what is in flight (`cost.inflight`) are the
cost model's; what our trainer holds on top, and when, is counted in `planner.moments`. Per token and layer a Llama
keeps, in elements (h hidden, a heads of size d, f feed-forward, s sequence, t tensor):

    4 h  +  4 a d / t  +  4 f / t  +  a / t  +  s  +  2

four for the two norms (normalised, scaled; eight in half precision, with their inputs in full), four for queries, keys
and values (repeated to all heads under a mask) and the attention's output, four for gate, up, their product and the
activation, the log-sum-exp, the mask as numbers, and the norms' scales; over short sequences the weights of all pairs
of tokens, s a / t (`kept_weights`). Hidden states are whole on each tensor rank; sequence parallelism divides what
norms keep inside, not what they hand on (2 h + 2 h / t).
How many micro-batches a pipeline rank holds is `Cut.in_flight`.
"""

from __future__ import annotations

from dataclasses import replace

from trainingrun.planner import zero
from trainingrun.planner.layout import Cut
from trainingrun.planner.moments import Rank, fullest
from trainingrun.planner.optimizer_state import state_bytes
from trainingrun.planner.parameters import stage_parameters
from trainingrun.planner.types import MemoryBill, ModelShape, NodeShape, TrainingShape

STATE_BUFFERS = 3  # two snapshots, one of them being written, and the copy that a checkpoint is written from
BUDDY_BUFFERS = 2  # of another node's snapshots: the newest complete one, and the one that arrives
MARGIN_PERCENT = 4
ACCELERATOR_MARGIN_BYTES = 1 << 30  # fragmentation of the caching allocator


def available_bytes(node: NodeShape) -> int:
    """Memory of one process, the margin included."""
    return node.memory_bytes // node.processes


def margin_bytes(node: NodeShape) -> int:
    """What a plan leaves free: models are wrong by a few percent."""
    margin = available_bytes(node) * MARGIN_PERCENT // 100
    return margin if node.device == "cpu" else max(margin, ACCELERATOR_MARGIN_BYTES)


def fits(bill: MemoryBill, node: NodeShape) -> bool:
    host = not node.host_memory_bytes or bill.host * node.processes <= host_available_bytes(node)
    return fits_device(bill, node) and host


def fits_device(bill: MemoryBill, node: NodeShape) -> bool:
    """Whatever its host has room for."""
    return bill.total + margin_bytes(node) <= available_bytes(node)


def host_available_bytes(node: NodeShape) -> int:
    """Host memory that snapshots may take, beside interpreters and libraries (2 GiB a process)."""
    return node.host_memory_bytes - node.processes * (2 << 30)


def state_bytes_of_node(bill: MemoryBill, node: NodeShape, cut: Cut) -> int:
    """Weights and optimizer as a snapshot has them; 0 with ZeRO, whose parts only the same world can load."""
    return 0 if cut.zero else node.processes * max(bill.snapshots, bill.host) // STATE_BUFFERS


def memory_bill(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    replicate: int,
    micro_batch: int,
    accumulation: int,
) -> MemoryBill:
    """The bill of the fullest rank. The first stage holds the most micro-batches, the last has head and
    logits.

    `accumulation` micro-batches a step, at least as many as there are stages, of `micro_batch` sequences.
    """
    bills = [
        stage_bill(
            model,
            training,
            node,
            cut,
            stage,
            replicate=replicate,
            micro_batch=micro_batch,
            accumulation=accumulation,
        )
        for stage in cut.ends
    ]
    return max(bills, key=lambda bill: bill.total)


def with_buddies(
    model: ModelShape, training: TrainingShape, node: NodeShape, cut: Cut, bill: MemoryBill
) -> MemoryBill:
    """`bill` and this process's share of the snapshots that its node keeps for another, which may have the fullest
    stage.
    """
    size = BUDDY_BUFFERS * max(_state_bytes(model, training, cut, stage) for stage in cut.ends)
    if node.device == "cpu":
        return replace(bill, buddies=size)
    return replace(bill, host=bill.host + size)


def _state_bytes(model: ModelShape, training: TrainingShape, cut: Cut, stage: int) -> int:
    """What a snapshot of a rank of this stage takes: its weights, and what the optimizer keeps."""
    parameters = stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank)
    own = -(-parameters.total // cut.shard)
    weights = training.parameter_bytes * own * (2 if training.averaged else 1)
    return weights + state_bytes(model, training, parameters, cut)


def stage_bill(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    stage: int,
    *,
    replicate: int,
    micro_batch: int,
    accumulation: int,
) -> MemoryBill:
    """The bill of a rank of this pipeline stage, in bytes."""
    size, small = training.parameter_bytes, training.activation_bytes
    on_host = node.device != "cpu"
    parameters = stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank)
    own = -(-parameters.total // cut.shard)
    tokens = micro_batch * training.sequence_length // cut.context
    if model.attention_dropout and not on_host:  # only accelerators drop in a fused kernel
        training = replace(training, eager=True)
    rank = Rank(model, training, cut, stage, parameters, tokens, accumulation)
    peak = fullest(rank, replicas=replicate * cut.context > 1)
    state = state_bytes(model, training, parameters, cut) + (size * own if training.averaged else 0)
    # Sharded weights are gathered in half precision; others have a copy in it beside the master.
    copies = small * own if training.mixed and cut.shard == 1 else 0
    snapshots = STATE_BUFFERS * (size * own + state)
    if cut.zero:
        zeroed = zero.bytes_of(training, parameters, cut, host=on_host)
        return MemoryBill(
            weights=zeroed.weights,
            gradients=zeroed.gradients,
            optimizer=zeroed.moments,
            activations=peak.activations,
            logits=peak.logits,
            buffers=zeroed.held + peak.buffers,
            reserved=node.reserved_bytes_per_process,
            snapshots=0 if on_host else snapshots,
            host=snapshots + zeroed.host if on_host else 0,
        )
    return MemoryBill(
        weights=size * own + copies,
        gradients=size * own,
        optimizer=state,
        activations=peak.activations,
        logits=peak.logits,
        buffers=peak.buffers,
        reserved=node.reserved_bytes_per_process,
        snapshots=0 if on_host else snapshots,
        host=snapshots if on_host else 0,
    )
