"""What a rank of our own trainer holds beside weights, gradients and optimizer at each moment of a step that may be its
fullest. Pure arithmetic on shapes; called by `planner.memory` for each candidate.

Every term was found by counting the live tensors of real ranks, operation by operation (`benchmarks.memory`). With n
tokens of a micro-batch, h hidden, f feed-forward, t tensor, v vocabulary:

    loss        all that layers keep, the last norm, and the copies of the logits
    gathering   the same with one copy; sharded, the root is gathered again, beside what it arrives in
    head        one copy, the gradient of the last hidden state and of the head's matrix: n h + v h / t
    layer       no logits; in the feed-forward's backward pass 2 n h + 2 n f / t beside what the layer keeps (or has
                computed again), or one f with the gradient of a matrix, before that is added up
    end         sharded, the root's gradient beside the message that is made of it; activations are gone
    replicas    one bucket of gradients that replicas add up
    update      what the optimizer works with

With one micro-batch a step gradients come only as activations go, and are counted whole all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainingrun.planner.costing import LOGIT_COPIES, WHOLE_LOGIT_COPIES, kept_elements
from trainingrun.planner.layout import Cut
from trainingrun.planner.optimizer_state import table_bytes, update_elements
from trainingrun.planner.parameters import StageParameters, vocabulary_parameters
from trainingrun.planner.types import ModelShape, TrainingShape
from trainingrun.protocol.attention import LONGEST_KEPT
from trainingrun.protocol.records import STAGES_PER_RANK

Z_LOSS_COPIES = 2  # more: what is subtracted from, and exponentials; uncut, those of the loss beside them
DROPOUT_COPIES = 2  # more of the weights of all pairs of tokens: after dropout, and its mask
BUCKET_ELEMENTS = 8 << 20  # of gradients that replicas add up at once: 32 MiB in FP32


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes."""

    activations: int
    logits: int
    buffers: int

    @property
    def total(self) -> int:
        return self.activations + self.logits + self.buffers


@dataclass(frozen=True, slots=True)
class Rank:
    """Of a pipeline stage. `tokens`: of a micro-batch, that it computes."""

    model: ModelShape
    training: TrainingShape
    cut: Cut
    stage: int
    parameters: StageParameters
    tokens: int
    accumulation: int

    @property
    def last(self) -> bool:
        return self.stage == self.cut.head_rank

    @property
    def sharded(self) -> bool:
        """By FSDP2: ZeRO is counted by itself."""
        return self.cut.shard > 1 and not self.cut.zero

    @property
    def gathers(self) -> bool:
        """Layers, for each pass through them; the stages of a pipeline stay gathered for a whole step."""
        return self.sharded and self.cut.pipeline == 1

    @property
    def own(self) -> int:
        return -(-self.parameters.total // self.cut.shard)

    @property
    def columns(self) -> int:
        return -(-self.model.vocabulary_size // self.cut.tensor)

    @property
    def hidden(self) -> int:
        """Of a hidden state between layers, per token; tensor ranks share the tokens under sequence parallelism."""
        return self.model.hidden_size // (self.cut.tensor if self.training.sequence_parallel else 1)


def fullest(rank: Rank, *, replicas: bool) -> Moment:
    moment = max(_moments(rank, replicas=replicas), key=lambda one: one.total)
    held = _held(rank)
    return replace(moment, buffers=moment.buffers + held) if held else moment


def layer_activation_elements(model: ModelShape, training: TrainingShape, tensor: int) -> int:
    """Elements that one layer keeps for its backward pass, per token."""
    elements = kept_elements(model, training, tensor)
    heads, sequence = model.attention_heads // tensor, training.sequence_length
    if model.hidden_dropout:  # what attention and feed-forward add is masked
        elements += 2 * model.hidden_size
    if training.eager:
        # The softmax is computed in FP32 at least. The mask is not kept as numbers, but as bytes.
        copies = (3 if training.mixed else 1) + (DROPOUT_COPIES if model.attention_dropout else 0)
        return elements + copies * heads * sequence - sequence + sequence // training.activation_bytes
    if kept_weights(training):
        # Neither the mask as numbers, nor the logarithms of sums, nor keys and values for each head.
        keys = max(1, model.key_value_heads // tensor)
        repeated = 2 * (heads - keys) * model.head_dim if keys > 1 else 0
        elements += heads * sequence - sequence - heads - repeated
    return elements


def kept_weights(training: TrainingShape) -> bool:
    """Whether the trainer's attention keeps the weights of all pairs of tokens, as it may on a CPU."""
    return (
        not (training.eager or training.mixed)
        and training.context == 1
        and training.sequence_length <= LONGEST_KEPT
    )


def _moments(rank: Rank, *, replicas: bool) -> Iterator[Moment]:
    kept = _kept(rank)
    yield _layer(rank, kept)
    if rank.last:
        norm = _last_norm(rank)
        yield _loss(rank, kept + norm)
        yield _head(rank, kept + norm)
        if rank.gathers:
            yield _gathering(rank, kept + norm)
    if rank.sharded:
        yield _end(rank)
    if replicas:
        largest = max(rank.parameters.layer, rank.parameters.root)
        bucket = min(rank.own, BUCKET_ELEMENTS + -(-largest // rank.cut.shard))
        yield Moment(0, 0, rank.training.parameter_bytes * bucket)
    update = update_elements(rank.model, rank.training, rank.parameters)
    yield Moment(0, 0, rank.training.parameter_bytes * update)


def _kept(rank: Rank) -> int:
    """Bytes of the micro-batches in flight. A layer that is computed again keeps its input only."""
    model, training, layers = rank.model, rank.training, rank.parameters.layers
    short = _short(rank)
    each = layer_activation_elements(model, training, rank.cut.tensor)
    elements = (layers - short) * each + short * rank.hidden
    if model.rotary:  # cosine and sine, for each stage
        elements += 2 * model.head_dim * (rank.cut.stages // rank.cut.pipeline)
    if rank.stage == 0 and model.hidden_dropout:
        elements += model.hidden_size
    return int(training.activation_bytes * rank.tokens * rank.cut.in_flight(rank.stage) * elements)


def _last_norm(rank: Rank) -> int:
    """transformers' own, which half precision has, keeps its input in full precision too; what the head gets is whole
    on each rank.
    """
    inside = 3 if rank.training.mixed and not rank.model.norm_bias else 1
    return rank.training.activation_bytes * rank.tokens * (inside * rank.hidden + rank.model.hidden_size)


def _short(rank: Rank) -> int:
    """Layers that are computed again."""
    return sum(_computed_again(rank.training, layer) for layer in range(rank.parameters.layers))


def _computed_again(training: TrainingShape, layer: int) -> bool:
    """As `trainer.recompute` has it, for the layers of a stage."""
    mode = training.activation_checkpointing
    return mode == "Full" or (mode == "Selective" and layer % 2 == 0)


def _loss(rank: Rank, kept: int) -> Moment:
    """It is computed in FP32 at least: beside that are the logits themselves or their gradient, in half precision, and
    in a pipeline those of the micro-batch before.
    """
    training, small = rank.training, rank.training.activation_bytes
    whole = rank.cut.tensor == 1 and training.engine == "Native"
    copies = WHOLE_LOGIT_COPIES if whole and not training.z_loss else LOGIT_COPIES
    if training.z_loss:
        copies += Z_LOSS_COPIES + (1 if whole else 0)
    each = training.parameter_bytes * copies
    each += (small if training.mixed else 0) + (small if rank.cut.pipeline > 1 else 0)
    gathered = small * rank.parameters.layer if rank.gathers else 0
    return Moment(kept, each * rank.tokens * rank.columns, gathered)


def _gathering(rank: Rank, kept: int) -> Moment:
    small, parameters = rank.training.activation_bytes, rank.parameters
    gathered = small * (2 * parameters.root + parameters.layer)
    return Moment(kept, small * rank.tokens * rank.columns, gathered)


def _head(rank: Rank, kept: int) -> Moment:
    small = rank.training.activation_bytes
    copies = 2 if rank.cut.pipeline > 1 and rank.training.mixed else 1
    gathered = rank.parameters.root + rank.parameters.layer if rank.gathers else 0
    return Moment(
        activations=kept + small * rank.tokens * rank.model.hidden_size,
        logits=copies * small * rank.tokens * rank.columns,
        buffers=small * (gathered + vocabulary_parameters(rank.model, rank.cut.tensor)),
    )


def _layer(rank: Rank, kept: int) -> Moment:
    """The backward pass of the last layer. A pipeline has the logits still; sharded, one layer computes while the next
    arrives, and with a single micro-batch the head's gradient waits for the rest of the root's.
    """
    model, training, tokens = rank.model, rank.training, rank.tokens
    small, inner = training.activation_bytes, model.intermediate_size // rank.cut.tensor
    again = layer_activation_elements(model, training, rank.cut.tensor) - rank.hidden  # beside its input
    if rank.cut.schedule == "ZBV" and rank.cut.pipeline > 1:
        kept += _last_norm(rank) if rank.last else 0
        working = tokens * (_halves(rank) + _short(rank) * again // STAGES_PER_RANK["ZBV"])
    else:
        working = 2 * tokens * model.hidden_size + (tokens + max(tokens, model.hidden_size)) * inner
        working += tokens * again if _computed_again(training, rank.parameters.layers - 1) else 0
    buffers = 0
    if rank.gathers:
        buffers = small * (rank.parameters.root + min(2, rank.parameters.layers) * rank.parameters.layer)
        if rank.accumulation == 1:
            matrix = model.hidden_size * inner
            buffers += training.parameter_bytes * (vocabulary_parameters(model, rank.cut.tensor) + matrix)
    logits = small * tokens * rank.columns if rank.last and rank.cut.pipeline > 1 else 0
    return Moment(kept + small * working, logits, buffers)


def _halves(rank: Rank) -> int:
    """Elements a token, between the two halves of a backward pass that ZBV takes apart: nothing of the stage is given
    back, and each matrix waits with the gradient of what it put out.
    """
    model, tensor, hidden = rank.model, rank.cut.tensor, rank.model.hidden_size
    heads = model.attention_heads // tensor + 2 * max(1, model.key_value_heads // tensor)
    each = 2 * model.intermediate_size // tensor + heads * model.head_dim + 2 * hidden
    return rank.parameters.layers // STAGES_PER_RANK[rank.cut.schedule] * each + 3 * hidden


def _end(rank: Rank) -> Moment:
    """Instead of the gradients that had piled up: those of the root, and their message."""
    size, small, root = rank.training.parameter_bytes, rank.training.activation_bytes, rank.parameters.root
    gathered = small * root if rank.gathers else 0
    return Moment(0, 0, max(0, 2 * size * root - _piled(rank)) + gathered)


def _piled(rank: Rank) -> int:
    """Data ranks talk once a step: with several micro-batches the gradients of a whole stage pile up before they are
    scattered. In bytes beyond the rank's own part.
    """
    if not rank.sharded or rank.accumulation == 1:
        return 0
    return rank.training.parameter_bytes * (rank.parameters.total - rank.own)


def _held(rank: Rank) -> int:
    """All through the step."""
    training, cut = rank.training, rank.cut
    held = _piled(rank) + table_bytes(training)
    if cut.pipeline == 1:
        return held
    if rank.sharded:
        held += training.activation_bytes * rank.parameters.total
    return held + training.activation_bytes * rank.tokens * rank.hidden * _in_transit(rank)


def _in_transit(rank: Rank) -> int:
    """Hidden states and their gradients between stages: one that comes, a gradient that leaves the last stage, room for
    those of every micro-batch, made at the start, and what was sent: as long as its micro-batch is in flight, or with
    several stages a rank to the end of the step.
    """
    stages, ends = STAGES_PER_RANK[rank.cut.schedule], (rank.stage == 0) + rank.last
    received = rank.accumulation * (2 * stages - ends)
    if stages > 1:
        sent = rank.accumulation * (stages - rank.last)
    else:
        sent = 0 if rank.last else round(rank.cut.in_flight(rank.stage)) + 1
    return 1 + rank.last + received + sent
