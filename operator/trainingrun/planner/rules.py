"""Which degrees of tensor and pipeline parallelism a model and a node allow, and what to say about a pin that
is not one.

Every refusal prints the whole equation and the nearest degree that works. Called by the search; nothing here
weighs memory or time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from trainingrun.planner.errors import NothingFits, PlanError, PlanInputError
from trainingrun.planner.layout import Cut
from trainingrun.planner.types import Inventory, ModelShape, TrainingShape
from trainingrun.protocol import eight_bits
from trainingrun.protocol.records import STAGES_PER_RANK

AXES = "spec.parallelism.axes"


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def nearest(value: int, allowed: Iterable[int]) -> int:
    """The allowed number that is closest as a ratio; the smaller of two."""
    return min(allowed, key=lambda one: (abs(math.log(one / value)), one))


def dividing_tensors(model: ModelShape, training: TrainingShape) -> list[int]:
    """Tensor degrees that cut heads, key-value heads and feed-forward evenly, and no block of the optimizer's."""
    common = math.gcd(model.attention_heads, model.key_value_heads, model.intermediate_size)
    rows = _rows_of_blocks(model, training)
    return [degree for degree in divisors(common) if all(row.whole_under(degree) for row in rows)]


def tensor_degrees(model: ModelShape, training: TrainingShape, processes: int) -> list[int]:
    """... of which the ranks also fill a node evenly: tensor parallelism does not leave a node."""
    return [degree for degree in dividing_tensors(model, training) if processes % degree == 0]


def _rows_of_blocks(model: ModelShape, training: TrainingShape) -> tuple[eight_bits.Row, ...]:
    if training.optimizer != eight_bits.NAME:
        return ()
    return eight_bits.rows_cut_by_tensor(
        model.model_type,
        hidden=model.hidden_size,
        attention=model.attention_heads * model.head_dim,
        intermediate=model.intermediate_size,
    )


def pipeline_degrees(model: ModelShape, training: TrainingShape) -> list[int]:
    """Degrees that give each stage of the schedule the same number of layers."""
    return [one for one in divisors(model.layers) if one == 1 or not model.layers % _stages(one, training)]


def _stages(pipeline: int, training: TrainingShape) -> int:
    return pipeline * STAGES_PER_RANK[training.schedule]


def cut_of(training: TrainingShape, processes: int, units: int, *, tensor: int, pipeline: int) -> Cut | None:
    """The cut of these degrees whose copies fill `units` nodes each, or None where nodes would be split unevenly."""
    context = training.context
    shard = shard_degree(processes, tensor * context, pipeline, units)
    if shard is None or (training.sequence_parallel and training.sequence_length % (tensor * context)):
        return None
    return Cut(pipeline, shard, tensor, context, training.schedule if pipeline > 1 else "1F1B")


def check_sequence(model: ModelShape, training: TrainingShape) -> None:
    if training.sequence_length > model.max_position_embeddings:
        raise PlanInputError(
            "spec.training.sequenceLength",
            training.sequence_length,
            f"{training.sequence_length} is more than the {model.max_position_embeddings} positions of the "
            "model (max_position_embeddings)",
            f"lower it to {model.max_position_embeddings}, or raise max_position_embeddings",
        )


def check_pins(model: ModelShape, training: TrainingShape, inventory: Inventory) -> None:
    """Raises PlanInputError for a pin that the model forbids, NothingFits for one that the machines cannot
    hold.
    """
    for axis in sorted(set(training.pinned) - {"tensor", "pipeline", "context"}):
        raise PlanInputError(
            f"{AXES}.{axis}",
            training.pinned[axis],
            f"{axis} is planned, never pinned",
            "remove it; tensor, pipeline and context can be pinned",
        )
    _check_context(training, inventory.node.processes)
    tensor, pipeline = training.pinned.get("tensor"), training.pinned.get("pipeline")
    processes = inventory.node.processes // training.context
    if tensor is not None:
        _check_tensor(model, training, tensor, processes)
        _check_tokens(training, tensor)
    if pipeline is not None:
        _check_pipeline(model, training, pipeline)
    _check_product(model, training, tensor, pipeline, inventory)
    if tensor is not None:
        _check_node(model, training, tensor, processes)


def refusal(model: ModelShape, training: TrainingShape, processes: int, *, tensor: int, pipeline: int) -> str:
    """Why the model or a node forbids these degrees, or an empty string. The machines' number is not looked
    at.
    """
    try:
        _check_tensor(model, training, tensor, processes // training.context)
        _check_pipeline(model, training, pipeline)
        _check_node(model, training, tensor, processes // training.context)
    except PlanError as error:
        return error.message
    return ""


def _check_tensor(model: ModelShape, training: TrainingShape, tensor: int, processes: int) -> None:
    for what, number in (
        ("attention heads", model.attention_heads),
        ("key-value heads", model.key_value_heads),
        ("rows of the feed-forward (intermediate_size)", model.intermediate_size),
    ):
        if number % tensor:
            allowed = tensor_degrees(model, training, processes)
            raise PlanInputError(
                f"{AXES}.tensor",
                tensor,
                _equation("tensor", tensor, number, what, allowed),
                _use("tensor", allowed),
            )
    for row in _rows_of_blocks(model, training):
        if not row.whole_under(tensor):
            allowed = tensor_degrees(model, training, processes)
            raise PlanInputError(
                f"{AXES}.tensor",
                tensor,
                f"{row.problem(tensor)}; nearest that fits: {nearest(tensor, allowed)}",
                f"{_use('tensor', allowed)}; or use spec.training.optimizer.name AdamW",
            )


def _check_pipeline(model: ModelShape, training: TrainingShape, pipeline: int) -> None:
    stages = _stages(pipeline, training)
    if pipeline == 1 or not model.layers % stages:
        return
    allowed = pipeline_degrees(model, training)
    message = _equation("pipeline", pipeline, model.layers, "layers", allowed)
    if stages != pipeline:
        message = (
            f"pipeline {pipeline} x {STAGES_PER_RANK[training.schedule]} stages a rank ({training.schedule}) = "
            f"{stages} stages do not divide {model.layers} layers ({_ratio(model.layers, stages)}); "
            f"nearest that fits: {nearest(pipeline, allowed)}"
        )
    raise PlanInputError(f"{AXES}.pipeline", pipeline, message, _use("pipeline", allowed))


def _check_tokens(training: TrainingShape, tensor: int) -> None:
    length, ranks = training.sequence_length, tensor * training.context
    if training.sequence_parallel and length % ranks:
        raise PlanInputError(
            "spec.parallelism.sequenceParallel",
            True,
            f"tensor {tensor} x context {training.context} = {ranks} ranks do not divide the {length} tokens of a "
            f"sequence ({_ratio(length, ranks)})",
            "set it to false, or use a sequenceLength that they divide",
        )


def _check_context(training: TrainingShape, processes: int) -> None:
    """Ranks that share a sequence's tokens exchange keys and values in every layer, so they share a node too."""
    context = training.context
    for what, number in (
        ("tokens of a sequence (sequenceLength)", training.sequence_length),
        ("processes of a node", processes),
    ):
        if number % context:
            allowed = divisors(math.gcd(training.sequence_length, processes))
            message = _equation("context", context, number, what, allowed)
            raise PlanInputError(f"{AXES}.context", context, message, _use("context", allowed))


def shard_degree(processes: int, tensor: int, pipeline: int, units: int) -> int | None:
    """The shard degree with which one copy of the state fills `units` nodes, or None where nodes would be
    split unevenly.

    The ranks of a stage's copy fill whole nodes, or nodes hold whole ones of them.
    """
    block, rest = divmod(units * processes, pipeline)
    if rest or block % tensor or (processes % block and block % processes):
        return None
    return block // tensor


def smallest_copy(processes: int, tensor: int, pipeline: int) -> int:
    """Fewest nodes that one copy of this cut fills."""
    return next(
        units
        for units in range(1, tensor * pipeline * processes + 1)
        if shard_degree(processes, tensor, pipeline, units)
    )


def _check_product(
    model: ModelShape,
    training: TrainingShape,
    tensor: int | None,
    pipeline: int | None,
    inventory: Inventory,
) -> None:
    # In groups of processes that share their sequences.
    processes, nodes = inventory.node.processes // training.context, inventory.max_nodes
    asked = (tensor or 1, pipeline or 1)
    needed, available = asked[0] * asked[1], nodes * processes
    if needed <= available:
        if processes % asked[0]:
            return  # said better by the next check
        units = smallest_copy(processes, *asked)
        if units <= nodes:
            return
        needs = f"{needed} processes, which fill whole nodes only from {units} nodes on, but {nodes} nodes x"
        least_nodes = units
    else:
        needs = f"{needed} processes, but {nodes} nodes x"
        least_nodes = math.ceil(needed / processes)
    best = min(
        (
            (t, p)
            for t in tensor_degrees(model, training, processes)
            for p in pipeline_degrees(model, training)
            if t * p <= available and smallest_copy(processes, t, p) <= nodes
        ),
        key=lambda pair: (abs(math.log(pair[0] / asked[0])) + abs(math.log(pair[1] / asked[1])), pair),
    )
    both = tensor is not None and pipeline is not None
    raise NothingFits(
        AXES if both else f"{AXES}.{'tensor' if tensor is not None else 'pipeline'}",
        {"tensor": tensor, "pipeline": pipeline} if both else tensor or pipeline,
        f"data 1 x tensor {asked[0]} x pipeline {asked[1]} = {needs} {processes} processes = {available} are "
        f"available; nearest that fits: tensor {best[0]} x pipeline {best[1]}",
        f"set tensor to {best[0]} and pipeline to {best[1]}, or spec.scale.maxNodes to {least_nodes}",
    )


def _check_node(model: ModelShape, training: TrainingShape, tensor: int, processes: int) -> None:
    if processes % tensor == 0:
        return
    allowed = tensor_degrees(model, training, processes)
    if tensor > processes:
        message = f"tensor {tensor} needs {tensor} processes in one node, but a node has {processes}"
    else:
        equation = _ratio(processes, tensor)
        message = f"tensor {tensor} does not divide the {processes} processes of a node ({equation})"
    raise NothingFits(
        f"{AXES}.tensor",
        tensor,
        f"{message}; nearest that fits: {nearest(tensor, allowed)}",
        f"set tensor to {nearest(tensor, allowed)}, or give each node a multiple of {tensor} processes",
    )


def _equation(axis: str, degree: int, number: int, what: str, allowed: list[int]) -> str:
    return (
        f"{axis} {degree} does not divide {number} {what} ({_ratio(number, degree)}); "
        f"nearest that fits: {nearest(degree, allowed)}"
    )


def _ratio(number: int, degree: int) -> str:
    return f"{number} / {degree} = {number / degree:.2f}"


def _use(axis: str, allowed: list[int]) -> str:
    return f"set {axis} to one of: {', '.join(map(str, allowed))}"
