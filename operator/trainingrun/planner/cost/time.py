"""How long a step takes: work by shape, what is sent and not hidden, and who waits for whom.

    micro-batch of a stage   products + attention + what passes through memory + recomputation + exposed
    sends of tensor,
                             context and expert ranks; or the host's time to start all that, if it is longer
    step                     micro-batches of the slowest stage + bubble + transfers + gradients and weights
    of data ranks
                             + optimizer + a constant

The coefficients are fitted (`fitted`, and `time_…` of frameworks); shapes, links and formulas are not. Pure,
and fast: searches call it for each candidate.
"""

from __future__ import annotations

from trainingrun.planner.cost import fitted
from trainingrun.planner.cost.collectives import all_reduce, exchange, group_link, transfer
from trainingrun.planner.cost.compute import flops_per_token, shapes
from trainingrun.planner.cost.cpu_times import CPU_TIMES
from trainingrun.planner.cost.data_parallel import between_steps
from trainingrun.planner.cost.pipeline import seconds as pipeline_seconds
from trainingrun.planner.cost.rates import CPU, rates
from trainingrun.planner.cost.types import Recompute, Sharding, Step, Workload

_BACKWARD_ATTENTION = 2.5  # of the forward pass: scores are computed again, and five products instead of two
_SHARPNESS = 4.0  # of the change from what the accelerator to what the host takes


def step_time(work: Workload) -> Step:
    model, layout, machine, framework = work.model, work.layout, work.machine, work.framework
    on_cores = machine.name == CPU
    c = CPU_TIMES if on_cores else fitted.FRAMEWORKS.get(framework.times or framework.name, fitted.COMMON)
    tensor, pipeline, context = layout.tensor, layout.pipeline, layout.context
    sequence, size = work.sequence_length, work.numerics.activations
    sums = shapes(model, tensor, layout.expert_tensor)
    rate = rates(machine, work.numerics.compute)
    memory = rate.memory
    tokens = layout.micro_batch * sequence / context
    experts = model.experts
    trained = (
        1.0 if work.numerics.adapters else 2.0
    )  # backward products: weights that are not trained need one
    full = work.layout.recompute is Recompute.FULL
    passes = 1.0 + trained + (1.0 if full else 0.0)

    # Matrix products of one micro-batch, all layers together.
    matmul = c["matmul"] * (c["ragged"] if sums.ragged else 1.0)
    product = 2.0 * tokens * sums.weights / rate.matmul * matmul
    product += c["product_bytes"] * size * (sums.weights + tokens * sums.through) / memory
    product += c["wave"] * sums.through / rate.matmul
    if rate.narrow:
        product += c["cast_bytes"] * tokens * sums.through / memory
    routed = 0.0
    if experts is not None:
        routed = tokens * experts.per_token * layout.expert_tensor / tensor
        local = experts.count / layout.expert
        product += 2.0 * routed * sums.expert_weights / rate.grouped * matmul
        product += (
            c["product_bytes"] * size * (local * sums.expert_weights + routed * sums.expert_through) / memory
        )
        if rate.narrow:
            product += c["cast_bytes"] * (local * sums.expert_weights + routed * sums.expert_through) / memory
    layers = product * passes
    if not work.numerics.adapters:  # gradients of weights are added to what earlier micro-batches left
        own_weights = sums.weights + (local * sums.expert_weights if experts is not None else 0.0)
        layers += c["accumulate_bytes"] * own_weights / memory
    if work.numerics.weights < 1.0:  # quantised weights are widened before each use
        held = sums.weights + (experts.count / layout.expert * sums.expert_weights if experts else 0.0)
        layers += c["widen_bytes"] * held / memory * passes

    # Attention: half of the square with flash attention, all of it and its scores without.
    causal = 0.5 * sequence
    window = min(sequence, model.sliding_window) if model.sliding_window else 0
    if framework.flash_attention:
        looked = 2.0 * tokens * (sums.attention * causal + sums.windowed * min(window, causal))
        attention = looked / rate.attention * c["attention"]
        again = 1.0 if full else 0.0
        layers += attention * (1.0 + _BACKWARD_ATTENTION + again)
    else:
        looked = 2.0 * tokens * (sums.attention + sums.windowed) * sequence
        attention = looked / rate.half * c["attention_whole"] * (1.0 if sums.aligned else c["misaligned"])
        attention += c["score_bytes"] * tokens * sequence * sums.score_heads / memory
        layers += attention * (passes if layout.recompute is not Recompute.SELECTIVE else passes + 1.0)

    # What passes through memory element by element, forward and backward.
    shared = tensor if layout.sequence_parallel else 1
    elements = tokens * (sums.whole_elements / shared + sums.cut_elements + c["scan_passes"] * sums.scan)
    elements += c["permute_passes"] * routed * sums.routed
    layers += c["element_passes"] * size * elements / memory * (3.0 + (1.0 if full else 0.0))

    # Sends inside a layer.
    sent_tensor = sent_context = sent_expert = 0.0
    hidden_bytes = tokens * sums.hidden * size
    if tensor > 1:
        link = group_link(machine, 1, tensor)
        blocks = sums.layers * 2.0
        times = 2.0 + (1.0 if full else 0.0)
        sent_tensor = c["tensor_exposed"] * blocks * times * all_reduce(hidden_bytes, tensor, link)
    if context > 1:
        link = group_link(machine, tensor, context)
        keys = tokens * sums.key_values * size
        ring = (context - 1) * (
            keys / link.bytes_per_second
            + sums.attention_layers * (link.half_size_bytes / link.bytes_per_second + link.latency_seconds)
        )
        sent_context = c["context_exposed"] * ring * (3.0 + (1.0 if full else 0.0))
    if experts is not None and layout.expert > 1:
        each = exchange(
            routed * sums.routed / sums.expert_layers * size if sums.expert_layers else 0.0,
            layout.expert,
            machine,
            layout.expert_tensor,
            c["expert_far"],
        )
        sent_expert = c["expert_exposed"] * sums.expert_layers * each * (4.0 + (2.0 if full else 0.0))

    # The head, on the last stage.
    logits = tokens * sums.vocabulary
    head = (
        2.0 * logits * sums.hidden / rate.half * matmul * 3.0
        + (c["loss_bytes_fused"] if framework.fused_loss else c["loss_bytes"]) * logits / memory
    )
    head *= 1.0 + sums.extra_heads

    # The host: it starts operations of a layer, forward and backward, whatever their size.
    a_layer = c["start_layer"]
    if tensor > 1:
        a_layer += c["start_tensor"]
    if rate.narrow:
        a_layer += c["start_narrow"]
    if work.numerics.adapters:
        a_layer += c["start_adapters"]
    if layout.sharding is Sharding.WEIGHTS:
        a_layer += c["start_shards"]
    starts = a_layer * sums.layers
    an_attention = c["start_context"] if context > 1 else 0.0
    if not framework.flash_attention:
        an_attention += c["start_scores"]
    if model.latent is not None:
        an_attention += c["start_latent"]
    if model.head_norms:
        an_attention += c["start_head_norms"]
    starts += an_attention * sums.attention_layers
    if framework.coefficients.get("memory_offloads_activations"):
        starts += c["start_offload"] * sums.layers
    if experts is not None:
        one_by_one = local if framework.coefficients.get("memory_experts_one_by_one") else 1.0
        starts += (c["start_experts"] + c["start_expert"] * one_by_one) * sums.expert_layers
    starts *= rate.host * (4.0 / 3.0 if full else 1.0)

    # Stages: the last has the head; where layers are spread unevenly, the fullest may be another one.
    share = ends = 1.0 / pipeline
    if layout.stage_layers:
        whole = float(sum(layout.stage_layers)) or 1.0
        share, ends = max(layout.stage_layers) / whole, layout.stage_layers[-1] / whole
    each = layers + sent_tensor + sent_context + sent_expert
    last = ends * each + head
    if share * each > last:
        stage, own_head = share, 0.0
    else:
        stage, own_head = ends, head
    compute = layers * stage
    busy = stage * each + own_head
    starts = starts * max(stage, share) + c["start_stage"] * rate.host * layout.virtual
    unit = busy + starts if on_cores else (busy**_SHARPNESS + starts**_SHARPNESS) ** (1.0 / _SHARPNESS)
    late = unit - busy  # the accelerator waits for its host
    mean = each / pipeline + head / pipeline + late

    # The pipeline.
    micro_batches = layout.accumulation
    _, bubble = pipeline_seconds(
        layout.schedule, pipeline, layout.virtual, micro_batches, unit, min(unit, mean)
    )
    moved = 0.0
    if pipeline > 1:
        stride = tensor * context * layout.data
        message = hidden_bytes / (tensor if layout.sequence_parallel else 1)
        one = transfer(message, machine, stride if machine.domain == 0 else 1 << 30, 2)
        moved = c["transfer_exposed"] * 2.0 * layout.virtual * (micro_batches + pipeline - 1) * one

    data, update = between_steps(work, unit, c, memory, max(1.0, sums.layers / pipeline))
    scale = micro_batches
    flops = flops_per_token(model, sequence) * sequence * work.global_batch
    return Step(
        compute=(compute + own_head) * scale,
        bubble=c["idle"] * bubble,
        tensor=sent_tensor * stage * scale,
        context=sent_context * stage * scale,
        pipeline=moved,
        expert=sent_expert * stage * scale,
        data=data,
        optimizer=update,
        other=late * scale + c["start_step"] + c["load_batch"] * micro_batches,
        model_flops=flops,
        flops_rule="causal",
    )
