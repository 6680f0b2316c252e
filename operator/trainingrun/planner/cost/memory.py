"""Peak memory of the ranks of a configuration, by part. Formulas of shapes; what differs between frameworks is a
coefficient (`memory_…`, see `frameworks`). Pure, and cheap enough for a search.

    bills = peak_memory(workload)       # ranks that may be the fullest
    bill = fullest(bills)

The fullest is an end of the pipeline: the first stage holds the most micro-batches, the last has head and
logits; with experts also the second, as the first layers may be dense. A rank is fullest at one of two
moments: at the loss, with the logits and their copies, or amid the backward pass, with the gradient of a
matrix beside the matrix.
"""

from __future__ import annotations

from trainingrun.planner.cost.activations import head_rows, recomputed_bytes, stage_bytes
from trainingrun.planner.cost.inflight import layers_in_flight, stage_range
from trainingrun.planner.cost.states import Parameters, head_rank, stage_parameters, states
from trainingrun.planner.cost.types import Bill, Recompute, Sharding, Workload

MIB = float(1 << 20)
GIB = float(1 << 30)
_NARROW = frozenset({"fp8", "mxfp8", "nvfp4"})  # weights are transposed beside themselves


def peak_memory(work: Workload) -> tuple[Bill, ...]:
    layout = work.layout
    ranks = {0, head_rank(layout)}
    if work.model.experts is not None and layout.pipeline > 2:
        ranks.add(1)
    return tuple(rank_bill(work, rank) for rank in sorted(ranks))


def fullest(bills: tuple[Bill, ...]) -> Bill:
    return max(bills, key=lambda bill: bill.total)


def last(bills: tuple[Bill, ...]) -> Bill:
    """Of the rank that has the head."""
    return bills[-1]


def rank_bill(work: Workload, rank: int) -> Bill:
    """The bill of the ranks of pipeline stage `rank`."""
    layout, given = work.layout, work.framework.coefficients
    parameters = stage_parameters(work, rank)
    held = states(work, parameters)
    tokens = layout.micro_batch * work.sequence_length / layout.context
    activations, logits, gradient = _fullest_moment(work, parameters, rank, tokens)
    buffers = _buffers(work, parameters, tokens) + held.gathered + gradient
    optimizer = held.optimizer
    if not work.numerics.adapters:
        buffers += given.get("memory_weight_extra", 0.0) * parameters.total
        if work.numerics.compute in _NARROW and work.layout.sharding is not Sharding.WEIGHTS:
            buffers += given.get("memory_narrow_copies", 1.0) * parameters.total
        extra = given.get("memory_optimizer_extra", 0.0)
        optimizer += extra * parameters.total / max(1, layout.shard) if extra else 0.0
    allocated = held.weights + held.gradients + optimizer + activations + logits + buffers
    context = given.get("memory_context_gib", 1.5) * GIB
    return Bill(
        rank=_name(rank, layout.pipeline),
        weights=held.weights,
        gradients=held.gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
        context=context,
        slack=_slack(work, allocated, activations, context),
        host=held.host,
    )


def _fullest_moment(
    work: Workload, parameters: Parameters, rank: int, tokens: float
) -> tuple[float, float, float]:
    """Activations, logits and a matrix' gradient at the fuller of: the loss, the head's backward pass, a layer's."""
    layout, given, model = work.layout, work.framework.coefficients, work.model
    begin, end = stage_range(model.layers, layout.pipeline, layout.stage_layers, rank)
    group = int(given.get("memory_micro_batch_group", 0))
    flying = layers_in_flight(layout, end - begin, rank, group)
    state = tokens * model.hidden_size / (layout.tensor if layout.sequence_parallel else 1)
    kept = stage_bytes(work, begin, end, flying, tokens)
    if rank == 0 and work.dropout:  # the mask of the embeddings' dropout
        kept += state * flying / max(1, end - begin)
    backward = recomputed_bytes(work, begin, end, tokens)
    inner = given.get("memory_backward_inner", 0.0) * model.intermediate_size / layout.tensor
    inner += given.get("memory_backward_hidden", 0.0) * model.hidden_size
    backward += work.numerics.activations * tokens * inner
    gradient = given.get("memory_gradient", work.numerics.activations) * parameters.largest
    if work.numerics.adapters:
        gradient = 0.0
    if rank != head_rank(layout):
        return kept + backward, 0.0, gradient
    if model.prediction_layers and layout.recompute is not Recompute.FULL:
        kept += model.prediction_layers * stage_bytes(work, end - 1, end, 1, tokens)
    if given.get("memory_moments"):
        return _fuller_end(work, parameters, tokens, kept, backward)
    last = given.get("memory_end", 6.0) * state  # around the last norm
    elements = tokens * head_rows(work)
    logits = _logit_bytes(work) * elements
    head_gradient = given.get("memory_head_gradient", 0.0)
    head_gradient += given.get("memory_head_copies", 0.0) * work.numerics.activations
    head_gradient *= parameters.head
    if backward + gradient > last + logits + head_gradient:
        return kept + backward, 0.0, gradient
    return kept + last, logits, head_gradient


def _fuller_end(
    work: Workload, parameters: Parameters, tokens: float, kept: float, backward: float
) -> tuple[float, float, float]:
    """Of our own trainer, whose moments do not add up: see `planner.moments`."""
    size, model, layout = work.numerics.activations, work.model, work.layout
    whole = layout.tensor if layout.sequence_parallel else 1
    inside = 3 if size < 4 and not model.norm_bias else 1
    norm = size * tokens * model.hidden_size * (inside / whole + 1)
    columns = tokens * head_rows(work)
    before = size * columns if layout.pipeline > 1 else 0.0  # of the micro-batch before
    hidden = size * tokens * model.hidden_size
    layer = root = 0.0  # gathered: two layers and the root are counted all through
    if layout.sharding is Sharding.WEIGHTS and layout.pipeline == 1:
        layer, root = size * parameters.layer, size * parameters.root
    moments = [
        (kept + backward, before, 0.0),
        (kept + norm, _logit_bytes(work) * columns + before, -layer - root),
        (kept + norm + hidden, size * columns, size * parameters.head - layer),
        (kept + norm, size * columns, root - layer),
    ]
    return max(moments, key=sum)


def _name(rank: int, pipeline: int) -> str:
    if pipeline == 1:
        return "each rank"
    if rank == 0:
        return "first stage"
    return "last stage" if rank == pipeline - 1 else f"stage {rank}"


def _logit_bytes(work: Workload) -> float:
    """Of each logit at the loss: itself, in single precision for the loss, and what the loss makes of it."""
    given = work.framework.coefficients
    if work.framework.fused_loss:
        return given.get("memory_fused_logit", 4.1)
    size = work.numerics.activations
    if "memory_logit_copies" in given:  # in single precision, and beside them the logits and their gradient
        whole = "memory_whole_logit_copies" if work.layout.tensor == 1 else "memory_logit_copies"
        return 4 * given.get(whole, given["memory_logit_copies"]) + (size if size < 4 else 0)
    return given.get("memory_logit", size + 4)


def _slack(work: Workload, allocated: float, activations: float, context: float) -> float:
    """What the allocator keeps for later, as long as there is room: it gives back before it fails."""
    given = work.framework.coefficients
    wanted = given.get("memory_slack_share", 0.04) * allocated
    wanted += given.get("memory_slack_activations", 0.0) * activations
    return min(wanted, max(0.0, 0.97 * work.machine.memory_bytes - allocated - context))


def _buffers(work: Workload, parameters: Parameters, tokens: float) -> float:
    """Libraries' workspaces, hidden states on their way, gradients of a sharded layer before they are scattered."""
    given, layout = work.framework.coefficients, work.layout
    total = workspaces(work) + given.get("memory_fixed_gib", 0.0) * GIB
    if layout.pipeline > 1:
        whole = layout.tensor if layout.sequence_parallel else 1
        sent = tokens * work.model.hidden_size * work.numerics.activations / whole
        total += given.get("memory_in_transit", 2.0) * sent
        if given.get("memory_receives_all"):
            total += layout.accumulation * sent
    if layout.sharding in (Sharding.GRADIENTS, Sharding.WEIGHTS) and not work.numerics.adapters:
        held = max(parameters.layer, parameters.root)
        if layout.accumulation > 1 and given.get("memory_piles_gradients"):
            held = parameters.total * (1.0 - 1.0 / max(1, layout.shard))
        total += given.get("memory_layer_gradient", work.numerics.gradients) * held
    if given.get("memory_local") and not work.framework.flash_attention:
        heads = work.model.attention_heads / layout.tensor
        total += work.numerics.activations * heads * tokens * work.sequence_length
    return total


def workspaces(work: Workload) -> float:
    """Of matrix libraries: one for each thread that starts products, larger on newer accelerators."""
    given = work.framework.coefficients
    modern = "fp8" in work.machine.peak_flops
    each = given.get("memory_workspace_mib", 32.0 if modern else 8.125) * MIB
    total = given.get("memory_workspaces", 2.0) * each
    if given.get("memory_engine"):
        streams = 5 if given.get("memory_grouped_products") else 1
        total += streams * (32.0 if modern else 4.0) * MIB
    return total
