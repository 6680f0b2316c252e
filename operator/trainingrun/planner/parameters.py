"""How many parameters a Llama decoder has, whole and on one rank. Exact; called by the memory and time
models.

Tensor parallelism cuts the projections and the two vocabulary matrices, and leaves the norms
whole on each rank. A stage's root block is what is not in a layer: embedding, last norm, head.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.types import ModelShape


@dataclass(frozen=True)
class StageParameters:
    """Parameters of one pipeline stage on one tensor rank, before sharding."""

    layers: int
    layer: int  # of one layer
    root: int  # embedding, last norm and head, where this stage has them

    @property
    def total(self) -> int:
        return self.layers * self.layer + self.root


def projection_parameters(model: ModelShape) -> int:
    """Weights of one layer's matrix products: queries, keys, values, output, gate, up and down."""
    heads = 2 * model.attention_heads + 2 * model.key_value_heads
    return model.hidden_size * (heads * model.head_dim + 3 * model.intermediate_size)


def matmul_parameters(model: ModelShape, layers: int, *, head: bool) -> int:
    """Weights that each token is multiplied with. The embedding is a look-up; a tied head is a product all
    the same.
    """
    return layers * projection_parameters(model) + (model.vocabulary_size * model.hidden_size if head else 0)


def layer_parameters(model: ModelShape, tensor: int = 1) -> int:
    norms = 2 * model.hidden_size
    return projection_parameters(model) // tensor + norms


def vocabulary_parameters(model: ModelShape, tensor: int = 1) -> int:
    """Rows of the embedding (or of the head) on the fullest tensor rank."""
    return -(-model.vocabulary_size // tensor) * model.hidden_size


def stage_parameters(model: ModelShape, pipeline: int, stage: int, tensor: int) -> StageParameters:
    """Stage `stage` of `pipeline`. The degrees must divide (see `planner.rules`)."""
    first, last = stage == 0, stage == pipeline - 1
    root = vocabulary_parameters(model, tensor) if first else 0
    if last:
        root += model.hidden_size
        root += 0 if model.tied_embeddings else vocabulary_parameters(model, tensor)
    return StageParameters(layers=model.layers // pipeline, layer=layer_parameters(model, tensor), root=root)


def count_parameters(model: ModelShape) -> int:
    """Trainable parameters of the whole model; a tied head counts once."""
    return stage_parameters(model, pipeline=1, stage=0, tensor=1).total
