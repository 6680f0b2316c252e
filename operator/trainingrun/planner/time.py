"""Predicted time of a step: a first, honest model that says where the time goes. Pure arithmetic; no clock.

FLOPs of the model per step (each matrix product once forward, twice backward; nothing is recomputed):

    3 x tokens x (2 x matmul parameters + 4 x sequence x heads x head size x layers)

The attention term counts the whole square, as the papers do. Collectives take the time of a ring: an
all-reduce of n bytes over g ranks moves 2 (g-1)/g n through each, a gather or a scatter half of that; groups
that share a node's link share its speed. Nothing overlaps on CPUs; on accelerators most of the sharding
traffic hides behind compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainingrun.planner import catalogue, zero
from trainingrun.planner.layout import Cut, Group, group
from trainingrun.planner.optimizer_state import update_flops, update_passes
from trainingrun.planner.parameters import matmul_parameters, stage_parameters
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape

HIDDEN_SHARE = 0.6  # of the compute time, in which accelerators hide gathers and scatters
LOCAL_HOP_SECONDS = 20e-6
CROSS_HOP_SECONDS = 50e-6
# Starting the operations of one layer, forward and backward: paid per micro-batch, whatever its size. On a CPU it comes
# on top of the work (about 150 operations of 10 us; 1.7 ms measured); an accelerator works meanwhile.
CPU_LAYER_SECONDS = 1.5e-3
ACCELERATOR_LAYER_SECONDS = 2e-4
RECOMPUTED_SHARE = {"Selective": 0.5, "Full": 1.0}  # of a forward pass, that the backward pass does once more


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by part. `flops` counts the sequences that weigh, not the padding."""

    compute: float
    bubble_seconds: float
    communication: float  # exposed
    optimizer: float
    bubble: float  # 1F1B: (p-1)/(m+p-1)
    flops: float

    @property
    def total(self) -> float:
        return self.compute + self.bubble_seconds + self.communication + self.optimizer


def model_flops(model: ModelShape, training: TrainingShape, sequences: int) -> float:
    """FLOPs of forward and backward over `sequences` sequences."""
    return (
        3.0
        * sequences
        * training.sequence_length
        * _flops_per_token(model, training, model.layers, head=True)
    )


def _flops_per_token(model: ModelShape, training: TrainingShape, layers: int, *, head: bool) -> float:
    attention = 4 * training.sequence_length * model.attention_heads * model.head_dim * layers
    return 2.0 * matmul_parameters(model, layers, head=head) + attention


def predict(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    replicate: int,
    micro_batch: int,
    accumulation: int,
) -> StepTime:
    """The step time of `replicate` copies of this cut. The slowest stage sets the pace; it is the last, with
    the head.
    """
    size = training.activation_bytes
    tokens = micro_batch * training.sequence_length // cut.context
    layers = model.layers // cut.pipeline
    hidden = size * tokens * model.hidden_size

    per_token = _flops_per_token(model, training, layers, head=True)
    passes = 3.0 + RECOMPUTED_SHARE.get(training.activation_checkpointing, 0.0)
    compute = passes * tokens * per_token / cut.tensor / _flops_per_second(model, node)
    if node.device == "cpu":
        compute += layers * CPU_LAYER_SECONDS
    else:
        compute = max(compute, layers * ACCELERATOR_LAYER_SECONDS)

    tensor_group = group(1, cut.tensor, node.processes)
    # Two all-reduces forward and two backward in each layer; one more for the embedding and one for the head.
    tensor_seconds = (4 * layers + 2) * _all_reduce(hidden, tensor_group, node)
    transfer = 0.0
    if cut.pipeline > 1:
        stage_group = group(cut.block, cut.pipeline, node.processes)
        transfer = 2 * (cut.stages // cut.pipeline) * _transfer(hidden, stage_group, node)
    # Keys and values are gathered forward, and their gradients scattered backward, in each layer.
    keys = 2 * size * tokens * cut.context * model.key_value_heads * model.head_dim / cut.tensor
    context_seconds = 2 * layers * _ring(keys, group(cut.tensor, cut.context, node.processes), node)

    idle = _idle_slots(cut)
    slots = accumulation + idle
    bubble = idle / slots
    moving = (accumulation + cut.pipeline - 1) * (tensor_seconds + transfer + context_seconds)
    moving += _data_parallel(model, training, node, cut, replicate, accumulation, compute)

    own = max(
        -(-stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank).total // cut.shard)
        for stage in cut.ends
    )
    # Each further micro-batch adds its gradients, of all shards, to those before: two reads and a write.
    adding = 3 * training.parameter_bytes * own * cut.shard / node.memory_bytes_per_second
    return StepTime(
        compute=accumulation * compute + (accumulation - 1) * adding,
        bubble_seconds=idle * compute,
        communication=moving,
        optimizer=update_passes(training) * training.parameter_bytes * own / node.memory_bytes_per_second
        + update_flops(model, training, layers) / node.flops_per_second,
        bubble=bubble,
        flops=model_flops(model, training, training.global_batch_sequences),
    )


def _data_parallel(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    replicate: int,
    accumulation: int,
    compute: float,
) -> float:
    """Exposed seconds of gathers and scatters over `shard`, and of the gradients' sum over `replicate`.

    Sharded weights are gathered for forward and backward of each micro-batch; a pipeline does that once a
    step, since its stages stay gathered. Gradients are scattered, and replicas add up, once a step.
    """
    stages = [
        stage_parameters(model, cut.pipeline, stage, cut.tensor, head=cut.head_rank) for stage in cut.ends
    ]
    fullest = max(stages, key=lambda stage: stage.total)
    if cut.zero:
        volume, messages = zero.traffic(training, fullest, cut, accumulation)
        moving = _ring(volume, group(1, cut.shard, node.processes), node, messages=messages)
        return moving if node.device == "cpu" else max(0.0, moving - HIDDEN_SHARE * accumulation * compute)
    whole = training.parameter_bytes * fullest.total
    shard_group = group(cut.context * cut.tensor, cut.shard, node.processes)
    rings = 2 if cut.pipeline > 1 else 2 * accumulation + 1
    gathered = training.activation_bytes * fullest.total
    # Weights travel in the format of the computation, gradients in that of the weights.
    volume = ((rings - 1) * gathered + whole) / rings
    moving = rings * _ring(volume, shard_group, node, messages=fullest.layers + 1)
    if node.device != "cpu":
        moving = max(0.0, moving - HIDDEN_SHARE * accumulation * compute)
    replicas = group(cut.processes, replicate, node.processes)
    summed = _all_reduce(whole / cut.shard, replicas, node)
    summed += _all_reduce(whole / cut.shard, group(cut.tensor, cut.context, node.processes), node)
    return moving + summed


def _flops_per_second(model: ModelShape, node: NodeShape) -> float:
    """Small layers leave a core waiting for memory and for calls (measured; see `catalogue.Cpu`)."""
    if node.device != "cpu":
        return node.flops_per_second
    hidden = model.hidden_size
    return node.flops_per_second * hidden / (hidden + catalogue.CPU.half_rate_hidden)


def _idle_slots(cut: Cut) -> float:
    """How many micro-batches' time a rank waits. Interleaving halves it; ZBV fills most of the rest with the
    gradients of weights, where these take a third of the work.
    """
    waits = cut.pipeline - 1
    return {"1F1B": waits, "Interleaved1F1B": waits / 2, "ZBV": waits / 6}[cut.schedule]


def _ring(payload: float, members: Group, node: NodeShape, *, messages: int = 1) -> float:
    """A gather or a scatter of `payload` bytes in `messages` parts."""
    if members.size == 1:
        return 0.0
    volume = payload * (members.size - 1) / members.size
    hops = messages * math.ceil(math.log2(members.size))
    seconds = volume / node.local_link_bytes_per_second + hops * LOCAL_HOP_SECONDS
    if members.crosses_nodes:
        crossing = volume * members.rings_per_node / node.link_bytes_per_second
        seconds = max(seconds, crossing + hops * CROSS_HOP_SECONDS)
    return seconds


def _all_reduce(payload: float, members: Group, node: NodeShape) -> float:
    return 2 * _ring(payload, members, node)


def _transfer(payload: float, stages: Group, node: NodeShape) -> float:
    """One hidden state from a stage to the next; where stages cross nodes, all ranks of a node's last stage send at
    once.
    """
    if stages.crosses_nodes:
        return payload * stages.rings_per_node / node.link_bytes_per_second + CROSS_HOP_SECONDS
    return payload / node.local_link_bytes_per_second + LOCAL_HOP_SECONDS


def flops_equation(model: ModelShape, training: TrainingShape) -> str:
    """The formula of this module with its numbers, for people."""
    tokens = training.global_batch_sequences * training.sequence_length
    weights = matmul_parameters(model, model.layers, head=True)
    total = model_flops(model, training, training.global_batch_sequences)
    return (
        f"3 x {tokens} tokens x (2 x {weights} matmul parameters + 4 x {training.sequence_length} sequence "
        f"x {model.attention_heads} heads x {model.head_dim} head size x {model.layers} layers) "
        f"= {total:.4g} FLOPs"
    )
