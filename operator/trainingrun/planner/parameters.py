"""How many parameters a decoder has, whole and on one rank. Exact; called by the memory and time
models.

Tensor parallelism cuts the projections and the two vocabulary matrices, and leaves norms, learned positions and the
biases of what is summed whole on each rank. A rank's root block is what is not in a layer: embedding, last norm,
head; an embedding that is tied to the head of another stage is there twice.
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
    head: int = 0  # of `root`, a head that is not tied

    @property
    def total(self) -> int:
        return self.layers * self.layer + self.root


def projection_parameters(model: ModelShape) -> int:
    """Weights of one layer's matrix products: queries, keys, values, output, gate, up and down."""
    heads = 2 * model.attention_heads + 2 * model.key_value_heads
    return model.hidden_size * (heads * model.head_dim + (3 if model.gated else 2) * model.intermediate_size)


def matmul_parameters(model: ModelShape, layers: int, *, head: bool) -> int:
    """Weights that each token is multiplied with. The embedding is a look-up; a tied head is a product all
    the same.
    """
    return layers * projection_parameters(model) + (model.vocabulary_size * model.hidden_size if head else 0)


def layer_parameters(model: ModelShape, tensor: int = 1) -> int:
    return projection_parameters(model) // tensor + _vectors(model, tensor)


def _vectors(model: ModelShape, tensor: int) -> int:
    """Norms and biases of one layer."""
    hidden = model.hidden_size
    count = 2 * norm_parameters(model) + (2 * model.head_dim if model.head_norms else 0)
    if model.query_bias:
        count += (model.attention_heads + 2 * model.key_value_heads) * model.head_dim // tensor
    if model.output_bias:
        count += hidden
    if model.feed_forward_bias:
        count += (2 if model.gated else 1) * model.intermediate_size // tensor + hidden
    return count


def norm_parameters(model: ModelShape) -> int:
    return (2 if model.norm_bias else 1) * model.hidden_size


def vocabulary_parameters(model: ModelShape, tensor: int = 1) -> int:
    """Rows of the embedding (or of the head) on the fullest tensor rank."""
    return -(-model.vocabulary_size // tensor) * model.hidden_size


def stage_parameters(
    model: ModelShape, pipeline: int, stage: int, tensor: int, *, head: int | None = None
) -> StageParameters:
    """Pipeline rank `stage` of `pipeline`; `head`: the rank of the head, if it is not the last one. The degrees must
    divide (see `planner.rules`).
    """
    first, last = stage == 0, stage == (pipeline - 1 if head is None else head)
    root = own_head = 0
    if first:
        root += vocabulary_parameters(model, tensor)
        root += 0 if model.rotary else model.max_position_embeddings * model.hidden_size
    if last:
        root += norm_parameters(model)
        root += 0 if model.tied_embeddings and pipeline == 1 else vocabulary_parameters(model, tensor)
        own_head = 0 if model.tied_embeddings else vocabulary_parameters(model, tensor)
    layer = layer_parameters(model, tensor)
    return StageParameters(layers=model.layers // pipeline, layer=layer, root=root, head=own_head)


def count_parameters(model: ModelShape) -> int:
    """Trainable parameters of the whole model; a tied head counts once."""
    return stage_parameters(model, pipeline=1, stage=0, tensor=1).total
