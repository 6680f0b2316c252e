"""Bytes of weights, gradients and optimizer on one rank, by what data ranks share out.

Weights that nobody shares are held as modules use them, gradients as they are accumulated; masters and moments
belong to the optimizer. Who shares weights (ZeRO 3, FSDP) holds the masters, and gathers a layer at a time.
Routed experts are shared among the ranks that hold the same ones, which are fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.cost.inflight import stage_range
from trainingrun.planner.cost.types import Layout, Sharding, Workload
from trainingrun.planner.models import counts


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of one pipeline stage on one rank, before data ranks share anything."""

    dense: float  # everything but routed experts
    routed: float
    layer: float  # of the largest layer, experts included
    root: float  # embedding, last norm and head where the stage has them
    largest: float  # of the largest matrix of a layer
    head: float  # rows of the vocabulary, where the stage has the head
    layers: int

    @property
    def total(self) -> float:
        return self.dense + self.routed


@dataclass(frozen=True, slots=True)
class States:
    weights: float
    gradients: float
    optimizer: float
    gathered: float  # whole layers, while they are used
    host: float


def head_rank(layout: Layout) -> int:
    return 0 if layout.schedule == "ZBV" else layout.pipeline - 1


def stage_parameters(work: Workload, rank: int) -> Parameters:
    model, layout = work.model, work.layout
    tensor, multiple = layout.tensor, work.framework.padded_vocabulary
    begin, end = stage_range(model.layers, layout.pipeline, layout.stage_layers, rank)
    stack = counts.stack(model, begin, end, tensor, layout.expert, layout.expert_tensor)
    each = counts.stack(model, end - 1, end, tensor, layout.expert, layout.expert_tensor)
    layer = each.total if end > begin else 0.0
    first, last = rank == 0, rank == head_rank(layout)
    root = 0.0
    rows = counts.vocabulary_rows(model, tensor, multiple) * model.hidden_size
    if first:
        root += counts.embedding(model, tensor, multiple)
    dense, routed = stack.dense, stack.routed
    if last:
        root += counts.final(model, tensor, multiple, tied=model.tied_embeddings and first)
        if model.prediction_layers:
            extra = model.prediction_layers
            dense += extra * (each.dense + 2 * model.hidden_size**2 / tensor)
            routed += extra * each.routed
            root += 0 if first else rows  # tokens to come are embedded here too
    largest = model.hidden_size * model.intermediate_size * (2 if model.gated else 1) / tensor
    return Parameters(dense + root, routed, layer, root, largest, rows if last else 0.0, end - begin)


def shards(layout: Layout) -> tuple[float, float]:
    """Ranks that share dense parameters, and those that share an expert."""
    everybody = layout.data * layout.context * layout.tensor
    same = max(1.0, everybody / (layout.expert * layout.expert_tensor))
    whole = layout.data * layout.context
    return max(1, layout.shard), max(1.0, same * layout.shard / whole)


def states(work: Workload, parameters: Parameters) -> States:
    numerics, layout = work.numerics, work.layout
    dense, routed = parameters.dense, parameters.routed
    group, expert_group = shards(layout)
    sharded = dense / group + routed / expert_group
    whole = parameters.total
    sharding = layout.sharding
    if numerics.adapters:
        return _adapters(work, parameters, sharded)
    kept = numerics.master + numerics.moments
    gathered = 0.0
    if sharding is Sharding.NONE:
        weights, gradients, optimizer = (
            whole * numerics.weights,
            whole * numerics.gradients,
            whole * kept,
        )
    elif sharding is Sharding.OPTIMIZER:
        weights, gradients = whole * numerics.weights, whole * numerics.gradients
        optimizer = sharded * kept
    elif sharding is Sharding.GRADIENTS:
        weights = whole * numerics.weights
        gradients, optimizer = sharded * numerics.gradients, sharded * kept
    else:
        # The masters are the weights that are shared; what modules use is gathered.
        weights = sharded * (numerics.master or numerics.weights)
        gradients, optimizer = sharded * numerics.gradients, sharded * numerics.moments
        size = min(numerics.weights, numerics.activations)
        gathered = size * (min(2, parameters.layers) * parameters.layer + parameters.root)
        if layout.pipeline > 1 and work.framework.coefficients.get("memory_stays_gathered"):
            gathered = size * whole
    host = 0.0
    if layout.offload_optimizer:
        host += optimizer
        optimizer = 0.0
    if layout.offload_weights:
        host += weights
        weights = 0.0
        gathered = gathered or numerics.weights * 2 * parameters.layer
    return States(weights, gradients, optimizer, gathered, host)


def _adapters(work: Workload, parameters: Parameters, sharded: float) -> States:
    """Weights that stand still, and small matrices beside them that are trained. The rank's share of those is
    its share of the layers.
    """
    numerics, layout = work.numerics, work.layout
    share = parameters.layers / work.model.layers / layout.tensor
    trained = numerics.adapters * share
    frozen = sharded if layout.sharding is Sharding.WEIGHTS else parameters.total
    root = parameters.root if numerics.weights < 1 else 0.0  # the vocabulary is not quantised
    quantised = numerics.weights + (work.framework.coefficients.get("memory_quantised", 0.0) if root else 0.0)
    weights = (frozen - root) * quantised + root * 2 if root else frozen * numerics.weights
    size = max(2.0, numerics.master)
    gathered = 0.0
    if layout.sharding is Sharding.WEIGHTS:
        whole = 2 * parameters.layer + parameters.root
        if work.framework.coefficients.get("memory_gathers_all"):
            whole = parameters.total
        gathered = numerics.weights * whole
    host = 0.0
    if layout.offload_weights:
        host, weights = weights, 0.0
        gathered = numerics.weights * (2 * parameters.layer + parameters.root)
        gathered += work.framework.coefficients.get("memory_offload_gib", 0.0) * (1 << 30)
    return States(
        weights + trained * size,
        trained * max(2.0, numerics.gradients),
        trained * (numerics.moments or 8),
        gathered,
        host,
    )
