"""How many parameters a decoder has, whole and on one rank: the counts of `models.counts` as whole numbers, for the
pipeline ranks of our own trainer. Exact; called by the memory and time models, for each candidate, so all is kept.

Tensor parallelism cuts the projections and the two vocabulary matrices, and leaves norms, learned positions and the
biases of what is summed whole on each rank. A rank's root block is what is not in a layer: embedding, last norm,
head; an embedding that is tied to the head of another stage is there twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.models import counts, flops
from trainingrun.planner.types import ModelShape


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters of one pipeline stage on one tensor rank, before sharding."""

    layers: int
    layer: int  # of one layer
    root: int  # embedding, last norm and head, where this stage has them
    head: int = 0  # of `root`, a head that is not tied

    @property
    def total(self) -> int:
        return self.layers * self.layer + self.root


def projection_parameters(model: ModelShape) -> int:
    """Weights of one layer's matrix products: queries, keys, values, output, gate, up and down."""
    return round(flops.products(model).layers) // model.layers


def matmul_parameters(model: ModelShape, layers: int, *, head: bool) -> int:
    """Weights that each token is multiplied with. The embedding is a look-up; a tied head is a product all
    the same.
    """
    return layers * projection_parameters(model) + (model.vocabulary_size * model.hidden_size if head else 0)


@lru_cache(maxsize=1024)
def layer_parameters(model: ModelShape, tensor: int = 1) -> int:
    return round(counts.stack(model, 0, 1, tensor).total)


def norm_parameters(model: ModelShape) -> int:
    return counts.norm_parameters(model)


def vocabulary_parameters(model: ModelShape, tensor: int = 1) -> int:
    """Rows of the embedding (or of the head) on the fullest tensor rank."""
    return counts.vocabulary_rows(model, tensor) * model.hidden_size


@lru_cache(maxsize=8192)
def stage_parameters(
    model: ModelShape, pipeline: int, stage: int, tensor: int, *, head: int | None = None
) -> StageParameters:
    """Pipeline rank `stage` of `pipeline`; `head`: the rank of the head, if it is not the last one. The degrees must
    divide (see `planner.rules`).
    """
    first, last = stage == 0, stage == (pipeline - 1 if head is None else head)
    root = counts.embedding(model, tensor) if first else 0
    own_head = 0
    if last:
        root += counts.final(model, tensor, tied=model.tied_embeddings and pipeline == 1)
        own_head = 0 if model.tied_embeddings else vocabulary_parameters(model, tensor)
    layer = layer_parameters(model, tensor)
    return StageParameters(layers=model.layers // pipeline, layer=layer, root=root, head=own_head)


def count_parameters(model: ModelShape) -> int:
    """Trainable parameters of the whole model; a tied head counts once."""
    return counts.count_parameters(model)
