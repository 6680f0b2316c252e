"""How much state each optimizer keeps on one rank, and what its update holds and computes.

Counts of shapes, as `trainer.optim` makes them (Adafactor's by a few norms too many); called by the memory and time
models.
"""

from __future__ import annotations

from trainingrun.planner.layout import Cut
from trainingrun.planner.parameters import (
    StageParameters,
    layer_parameters,
    norm_parameters,
    projection_parameters,
    vocabulary_parameters,
)
from trainingrun.planner.types import ModelShape, TrainingShape
from trainingrun.protocol import eight_bits

NEWTON_SCHULZ_STEPS = 5
_HELD_BY_MUON = 4  # whole matrix, Gram matrix, its square, and the product
_HELD_BY_ADAFACTOR = 3  # whole gradient, its estimate, and the squares
_HELD_IN_EIGHT_BITS = 8 << 18  # wide moments, look-ups and results of the elements that are worked on at once
_TABLE_BYTES = 2 * (2 << 20)  # the code of each number, of 21 bits, with and without a sign
_PASSES = 7  # over memory: AdamW reads weight, gradient and two moments, and writes weight and moments
_PASSES_IN_EIGHT_BITS = 25  # what it takes to widen and round: measured, on CPUs


def layer_matrices(model: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of each weight of one layer, whole."""
    queries, keys = model.attention_heads * model.head_dim, model.key_value_heads * model.head_dim
    hidden, forward = model.hidden_size, model.intermediate_size
    attention = [(queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)]
    return attention + [(forward, hidden)] * (2 if model.gated else 1) + [(hidden, forward)]


def state_bytes(model: ModelShape, training: TrainingShape, parameters: StageParameters, cut: Cut) -> int:
    """On the fullest rank of a stage with these parameters."""
    if training.optimizer == eight_bits.NAME:
        return _bytes_with_codes(model, training, parameters, cut)
    return training.parameter_bytes * _state_elements(model, training, parameters, cut)


def _bytes_with_codes(
    model: ModelShape, training: TrainingShape, parameters: StageParameters, cut: Cut
) -> int:
    """Two codes of 1 byte for each element of a matrix, and two scales of 4 bytes for each block of its rows; two full
    moments for all else. Rows are whole under the cuts that are allowed, or are cut between blocks.
    """
    weights = [matrix for matrix in layer_matrices(model) for _ in range(parameters.layers)]
    shapes = [(rows, columns, cut.tensor) for rows, columns in _as_stored(model, weights)]
    if parameters.head:
        shapes.append((parameters.head // model.hidden_size, model.hidden_size, 1))
    coded = codes_and_scales = 0
    for rows, columns, degree in shapes:
        if rows * columns >= eight_bits.SMALLEST:
            coded += rows * columns // degree
            codes_and_scales += 2 * (rows * columns + 4 * rows * -(-columns // eight_bits.BLOCK)) // degree
    full = 2 * training.parameter_bytes * (parameters.total - coded)
    return -(-(codes_and_scales + full) // cut.shard)


def _as_stored(model: ModelShape, matrices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(rows, elements of a row): GPT-2 has its outputs last."""
    return [(b, a) for a, b in matrices] if model.model_type == "gpt2" else matrices


def _state_elements(model: ModelShape, training: TrainingShape, parameters: StageParameters, cut: Cut) -> int:
    """On the fullest rank of a stage with these parameters."""
    own = -(-parameters.total // cut.shard)
    vectors = layer_parameters(model) - projection_parameters(model)
    match training.optimizer:
        case "Lion":
            return own
        case "Muon":
            # One momentum for the matrices of layers; two moments for the rest.
            return own + -(-(parameters.root + parameters.layers * vectors) // cut.shard)
        case "Adafactor":
            # Rows and columns of whole matrices, and whole vectors: cut by the pipeline only.
            layer = sum(rows + columns for rows, columns in layer_matrices(model)) + vectors
            tables = parameters.root // vocabulary_parameters(model, cut.tensor)
            last = tables * (model.vocabulary_size + model.hidden_size) + norm_parameters(model)
            return parameters.layers * layer + last
        case _:
            return 2 * own


def update_elements(model: ModelShape, training: TrainingShape, parameters: StageParameters) -> int:
    """What the update holds beside weights, gradients and state: whole matrices, one after the other."""
    largest = max(rows * columns for rows, columns in layer_matrices(model))
    if training.optimizer == "Muon":
        return _HELD_BY_MUON * largest
    if training.optimizer == eight_bits.NAME:
        return min(_HELD_IN_EIGHT_BITS, 8 * largest)
    if training.optimizer == "Adafactor":
        vocabulary = model.vocabulary_size * model.hidden_size if parameters.root > model.hidden_size else 0
        return _HELD_BY_ADAFACTOR * max(largest, vocabulary)
    return 0


def table_bytes(training: TrainingShape) -> int:
    """What the optimizer looks numbers up in, whatever the model."""
    return _TABLE_BYTES if training.optimizer == eight_bits.NAME else 0


def update_passes(training: TrainingShape) -> int:
    """How often the update goes through memory, in elements of a parameter."""
    return _PASSES_IN_EIGHT_BITS if training.optimizer == eight_bits.NAME else _PASSES


def update_flops(model: ModelShape, training: TrainingShape, layers: int) -> float:
    """Matrix products of the update on each rank: Muon orthogonalises whole matrices, on every rank the same."""
    if training.optimizer != "Muon":
        return 0.0
    each = sum(min(shape) ** 2 * (4 * max(shape) + 2 * min(shape)) for shape in layer_matrices(model))
    return float(NEWTON_SCHULZ_STEPS * layers * each)
