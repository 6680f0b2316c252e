"""Predicted peak memory of one process of our own trainer, by part, on the fullest rank. Pure arithmetic on shapes.

Parameters (`models.counts`), what a layer keeps (`cost.activations`) and what is in flight (`cost.inflight`) are the
cost model's; what FSDP2, snapshots, optimizers and the agent hold on top, and when, is counted here.

The activation terms count what autograd keeps of transformers' Llama layer with PyTorch's fused attention
under a document mask; they were found by adding up the saved tensors of that layer and hold to within 1 %.
Per token and layer, in elements (h hidden, a heads of size d, f feed-forward, s sequence, t tensor):

    4 h  +  4 a d / t  +  4 f / t  +  a / t  +  s  +  2

four for the two norms (normalised, scaled; six in half precision, with their inputs), four for queries, keys and
values (repeated to all heads under a mask) and the attention's output, four for gate, up, their product and the
activation, the log-sum-exp, the mask as numbers, and the norms' scales; over short sequences the weights of all pairs
of tokens, s a / t (`kept_weights`). Hidden states are whole on each tensor rank, unless sequence parallelism divides
them (4 h / t). The fullest moment is either the loss, with its copies of the logits,
or the backward pass of the last layer, which works with (3 h + 4 f / t) elements a token more.
How many micro-batches a pipeline rank holds is `Cut.in_flight`.

Against the peak of real ranks (hidden 512, 4 layers, vocabulary 8192, several micro-batches; no parallelism,
shard 2, tensor 2, pipeline 2) the sum was 2.6 % low to 3.9 % high; with a single micro-batch and shard 2 it
was 9 % high.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainingrun.planner import zero
from trainingrun.planner.costing import LOGIT_COPIES, WHOLE_LOGIT_COPIES, kept_elements
from trainingrun.planner.layout import Cut
from trainingrun.planner.optimizer_state import state_bytes, update_elements
from trainingrun.planner.parameters import StageParameters, stage_parameters, vocabulary_parameters
from trainingrun.planner.types import MemoryBill, ModelShape, NodeShape, TrainingShape
from trainingrun.protocol.attention import LONGEST_KEPT

STATE_BUFFERS = 3  # two snapshots, one of them being written, and the copy that a checkpoint is written from
BUDDY_BUFFERS = 2  # of another node's snapshots: the newest complete one, and the one that arrives
EAGER_COPIES = 3  # of the weights of all pairs of tokens: before and after dropout, and its mask
MARGIN_PERCENT = 4
BUCKET_ELEMENTS = 8 << 20  # of gradients that replicas add up at once: 32 MiB in FP32
ACCELERATOR_MARGIN_BYTES = 1 << 30  # fragmentation of the caching allocator


def available_bytes(node: NodeShape) -> int:
    """Memory of one process, the margin included."""
    return node.memory_bytes // node.processes


def margin_bytes(node: NodeShape) -> int:
    """What a plan leaves free: models are wrong by a few percent."""
    margin = available_bytes(node) * MARGIN_PERCENT // 100
    return margin if node.device == "cpu" else max(margin, ACCELERATOR_MARGIN_BYTES)


def fits(bill: MemoryBill, node: NodeShape) -> bool:
    device = bill.total + margin_bytes(node) <= available_bytes(node)
    host = not node.host_memory_bytes or bill.host * node.processes <= host_available_bytes(node)
    return device and host


def host_available_bytes(node: NodeShape) -> int:
    """Host memory that snapshots may take, beside interpreters and libraries (2 GiB a process)."""
    return node.host_memory_bytes - node.processes * (2 << 30)


def state_bytes_of_node(bill: MemoryBill, node: NodeShape, cut: Cut) -> int:
    """Weights and optimizer as a snapshot has them; 0 with ZeRO, whose parts only the same world can load."""
    return 0 if cut.zero else node.processes * max(bill.snapshots, bill.host) // STATE_BUFFERS


def layer_activation_elements(model: ModelShape, training: TrainingShape, tensor: int) -> int:
    """Elements that one layer keeps for its backward pass, per token."""
    pairs = EAGER_COPIES if training.eager else int(kept_weights(training))
    heads = model.attention_heads // tensor
    return kept_elements(model, training, tensor) + pairs * heads * training.sequence_length


def _norm_copies(training: TrainingShape) -> int:
    """Hidden states that a norm keeps: transformers' own, which half precision has, keep their input too."""
    return 3 if training.mixed else 2


def kept_weights(training: TrainingShape) -> bool:
    """Whether the trainer's attention keeps the weights of all pairs of tokens, as it may on a CPU."""
    return (
        not (training.eager or training.mixed)
        and training.context == 1
        and training.sequence_length <= LONGEST_KEPT
    )


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
    parameters = stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank)
    own = -(-parameters.total // cut.shard)
    tokens = micro_batch * training.sequence_length // cut.context
    moments = [_backward(model, training, cut, stage, parameters, tokens)]
    if stage == cut.head_rank:
        moments.append(_loss(model, training, cut, stage, parameters, tokens))
    if replicate * cut.context > 1:
        moments.append(_replicas(training, parameters, cut))
    moments.append(_Moment(0, 0, size * update_elements(model, training, parameters)))
    peak = max(moments, key=lambda moment: moment.total)
    held = _held(training, parameters, model, cut, accumulation=accumulation, tokens=tokens)
    state = state_bytes(model, training, parameters, cut) + (size * own if training.averaged else 0)
    # Sharded weights are gathered in half precision; others have a copy in it beside the master.
    copies = small * own if training.mixed and cut.shard == 1 else 0
    snapshots = STATE_BUFFERS * (size * own + state)
    on_host = node.device != "cpu"
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
        buffers=held + peak.buffers,
        reserved=node.reserved_bytes_per_process,
        snapshots=0 if on_host else snapshots,
        host=snapshots if on_host else 0,
    )


@dataclass(frozen=True)
class _Moment:
    """Bytes that are held at one moment of the step, beyond what is held all through."""

    activations: int
    logits: int
    buffers: int

    @property
    def total(self) -> int:
        return self.activations + self.logits + self.buffers


def _gathers(cut: Cut) -> bool:
    """Layers, for each pass through them. ZeRO 3 does it by itself, and is counted there."""
    return cut.shard > 1 and cut.pipeline == 1 and not cut.zero


def _kept(
    model: ModelShape, training: TrainingShape, cut: Cut, stage: int, parameters: StageParameters, tokens: int
) -> int:
    """Bytes of the activations of the micro-batches in flight, the last norm's included. A layer that is computed again
    keeps its input only.
    """
    short = _layers_computed_again(training, parameters.layers)
    layers = (parameters.layers - short) * layer_activation_elements(model, training, cut.tensor)
    kept = cut.in_flight(stage) * (layers + short * _input_elements(model, training, cut))
    last = _norm_copies(training) * model.hidden_size if stage == cut.head_rank else 0
    elements = tokens * (kept + last)
    return int(training.activation_bytes * elements)


def _input_elements(model: ModelShape, training: TrainingShape, cut: Cut) -> int:
    """Of a layer, per token; tensor ranks share the tokens under sequence parallelism."""
    return model.hidden_size // (cut.tensor if training.sequence_parallel else 1)


def _computed_again(training: TrainingShape, layer: int) -> bool:
    """As `trainer.recompute` has it, for the layers of a stage."""
    mode = training.activation_checkpointing
    return mode == "Full" or (mode == "Selective" and layer % 2 == 0)


def _layers_computed_again(training: TrainingShape, layers: int) -> int:
    """Of the first `layers` of a stage."""
    return {"Full": layers, "Selective": (layers + 1) // 2}.get(training.activation_checkpointing, 0)


def _loss(
    model: ModelShape, training: TrainingShape, cut: Cut, stage: int, parameters: StageParameters, tokens: int
) -> _Moment:
    """Between forward and backward: all copies of the logits, and the head's gradient before it is added."""
    return _Moment(
        activations=_kept(model, training, cut, stage, parameters, tokens),
        logits=_logit_bytes(training, cut) * tokens * -(-model.vocabulary_size // cut.tensor),
        buffers=training.activation_bytes * vocabulary_parameters(model, cut.tensor),
    )


def _logit_bytes(training: TrainingShape, cut: Cut) -> int:
    """Of one logit at the loss, which is computed in FP32 at least: in half precision the logits themselves, and
    their gradient, are there beside it. One that is looked at once and is not cut gives its memory to its gradient.
    """
    extra = 2 * training.activation_bytes if training.mixed else 0
    looked_at_twice = cut.tensor > 1 or training.z_loss or training.engine != "Native"
    copies = LOGIT_COPIES if looked_at_twice else WHOLE_LOGIT_COPIES
    second = 1 if cut.tensor > 1 and training.z_loss else 0
    return (copies + second) * training.parameter_bytes + extra


def _backward(
    model: ModelShape, training: TrainingShape, cut: Cut, stage: int, parameters: StageParameters, tokens: int
) -> _Moment:
    """In the backward pass of the last layer: what it works with, the logits themselves, the gradient of a
    matrix before it is added, and, sharded, two gathered layers (one computes while the next arrives).
    """
    last = stage == cut.head_rank
    working = 3 * model.hidden_size + 4 * model.intermediate_size // cut.tensor
    if _computed_again(training, parameters.layers - 1):
        # All that the layer would have kept; its input it has kept.
        working += layer_activation_elements(model, training, cut.tensor)
        working -= _input_elements(model, training, cut)
    gathered = min(2, parameters.layers) * parameters.layer if _gathers(cut) else 0
    small = training.activation_bytes
    return _Moment(
        activations=_kept(model, training, cut, stage, parameters, tokens) + small * tokens * working,
        logits=small * tokens * -(-model.vocabulary_size // cut.tensor) if last else 0,
        buffers=small * (gathered + model.hidden_size * model.intermediate_size // cut.tensor),
    )


def _held(
    training: TrainingShape,
    parameters: StageParameters,
    model: ModelShape,
    cut: Cut,
    *,
    accumulation: int,
    tokens: int,
) -> int:
    """What communication holds through the backward pass, in bytes.

    Sharded: the gathered root block, or in a pipeline the whole gathered stage. Data ranks talk once a step,
    so with several micro-batches the gradients of the whole stage pile up before they are scattered; with
    one, only the larger of a layer and the root. Stages also hold a hidden state that comes and one that
    leaves.
    """
    largest = max(parameters.layer, parameters.root)
    own = -(-parameters.total // cut.shard)
    size, small = training.parameter_bytes, training.activation_bytes
    held = 0
    if cut.shard > 1:
        piled = parameters.total - own
        held += size * (min(largest, piled) if accumulation == 1 else piled)
        held += small * (parameters.total if cut.pipeline > 1 else parameters.root)
    in_transit = 2 * tokens * model.hidden_size if cut.pipeline > 1 else 0
    return held + small * in_transit


def _replicas(training: TrainingShape, parameters: StageParameters, cut: Cut) -> _Moment:
    """After the backward pass: replicas add up one bucket of gradients after the other; activations are gone."""
    largest = max(parameters.layer, parameters.root)
    own = -(-parameters.total // cut.shard)
    bucket = min(own, BUCKET_ELEMENTS + -(-largest // cut.shard))
    return _Moment(0, 0, training.parameter_bytes * bucket)
