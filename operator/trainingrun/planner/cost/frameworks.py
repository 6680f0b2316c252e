"""Implementations of training by name, and what each spends: named coefficients, measured ones told apart from facts.

Memory coefficients begin with `memory_`, those of time with `time_`; whoever reads one gives the default that holds
for a framework that nobody measured. Nothing here depends on a model's name or on a row of measurements.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from trainingrun.planner.cost.types import Framework

_FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework("native", {}),
        Framework("native-fp32", {}),
        Framework("megatron", {}),
        # Its tests on one node of four accelerators: micro-batches wait for a host that has few cores.
        Framework("megatron-one-node", {}),
        Framework("megatron-bridge", {}, fused_loss=True),
        Framework("nemo", {}, fused_loss=True),
        Framework("megatron-kwai", {}),
        Framework("megatron-2021", {}, flash_attention=False),
        Framework("megatron-2023", {}),
        Framework("megatron-deepspeed", {}, flash_attention=False),
        Framework("sailor", {}, flash_attention=False),
        Framework("llm-foundry", {}),
        Framework("internevo", {}),
        Framework("litgpt", {}),
        Framework("torchtune", {}, fused_loss=True),
        Framework("torchtitan", {}),
        Framework("fms-fsdp", {}),
        Framework("automodel", {}),
        Framework("jax", {}),
        Framework("colossalai", {}),
        Framework("xtuner", {}),
        Framework("transformers", {}, flash_attention=False),
        Framework("primus", {}),
        Framework("deepspeed", {}),
    )
}


# Bytes a parameter beyond what `Numerics` says: `memory_weight_extra` on each rank, `memory_optimizer_extra`
# shared as the optimizer is. `memory_logit`, `memory_fused_logit`: bytes a logit at the loss.
# `memory_fixed_gib`: allocated whatever the model. `memory_context_gib` and slack (`memory_slack_share` of
# all, `memory_slack_activations` of those): what nvidia-smi sees beyond the allocator's peak.
# `memory_narrow_copies`: bytes a parameter beside it in 8 or 4 bits; none where it is held and gathered in those.
# Modules of transformers with torch's fused attention under a document mask, as `planner.moments` counts them. With
# FSDP2 data ranks talk once a step: whole gradients pile up beside the shards of them, and the stages of a pipeline
# stay gathered. Logits that are not cut give their memory to their gradient. GPT-2's activation is five operations.
# What norms hand on is kept whole under sequence parallelism. In the backward pass of a feed-forward there are the
# gradients of two hidden states and of two inner ones; a pipeline has room for what each micro-batch receives.
# Spread: live tensors of ranks on cores are within 0.04 of the bill, 0.015 as a spread (`benchmarks.memory`). What is
# lost on accelerators does not show there, and is taken to be as for Megatron, which is counted by operation too: 0.03.
# Both together, rounded up. Torch-native programs of others spread by 0.09, but are known from outside only.
_NATIVE = {
    "memory_spread": 0.035,
    "memory_inner_elements": 1.0,
    "memory_plain_inner_elements": 3.0,
    "memory_mask_elements": 1.0,
    "memory_repeats_keys": 1.0,
    "memory_gathers_context": 1.0,
    "memory_gathers_inputs": 1.0,
    "memory_logit_copies": 2.0,
    "memory_whole_logit_copies": 1.0,
    "memory_moments": 1.0,
    "memory_piles_gradients": 1.0,
    "memory_stays_gathered": 1.0,
    "memory_backward_hidden": 2.0,
    "memory_backward_inner": 2.0,
    "memory_gradient": 0.0,  # of a matrix: added up before the fullest moment
    "memory_receives_all": 1.0,
}

_MEMORY: dict[str, dict[str, float]] = {
    "native": _NATIVE | {"memory_norm_copies": 4.0},
    "native-fp32": _NATIVE,  # the trainer's own norm does not keep its input
    "megatron": {
        "memory_narrow_copies": 0.0,
        "memory_spread": 0.03,
        "memory_engine": 1.0,
        "memory_gradient": 4.1,
    },
    "megatron-bridge": {
        "memory_narrow_copies": 0.0,
        "memory_spread": 0.05,
        "memory_engine": 1.0,
        "memory_gradient": 4.1,
    },
    "nemo": {
        "memory_narrow_copies": 0.0,
        "memory_spread": 0.05,
        "memory_engine": 1.0,
        "memory_gradient": 4.1,
    },
    # ZeRO 1 keeps the gradients of its share in single precision beside masters and moments.
    "megatron-deepspeed": {
        "memory_spread": 0.05,
        "memory_weight_extra": 0.3,
        "memory_optimizer_extra": 6.0,
        "memory_slack_share": 0.0,
        "memory_slack_activations": 0.4,
        "memory_context_gib": 4.5,
    },
    # And of 2021, on accelerators of 32 GB: gradients are reduced from a second flat copy.
    "megatron-deepspeed-2021": {
        "memory_spread": 0.11,
        "memory_weight_extra": 5.5,
        "memory_optimizer_extra": 2.0,
        "memory_logit": 6.0,
        "memory_slack_share": 0.0,
        "memory_context_gib": 1.6,
    },
    # The same before it shared anything.
    "megatron-deepspeed-early": {
        "memory_spread": 0.12,
        "memory_optimizer_extra": 4.0,
        "memory_slack_share": 0.0,
        "memory_slack_activations": 0.7,
        "memory_context_gib": 1.2,
    },
    # With ZeRO 3, inputs of layers go to the host, where memory is short.
    "megatron-deepspeed-early-offloading": {
        "memory_spread": 0.12,
        "memory_optimizer_extra": 4.0,
        "memory_slack_share": 0.0,
        "memory_slack_activations": 0.7,
        "memory_context_gib": 1.2,
        "memory_inputs_kept": 0.0,
    },
    "megatron-kwai": {
        "memory_engine": 1.0,
        "memory_selective_norms": 1.0,
        "memory_selective_activation": 1.0,
    },
    # Its own offloading, where memory is short.
    "megatron-kwai-offloading": {
        "memory_engine": 1.0,
        "memory_selective_norms": 1.0,
        "memory_selective_activation": 1.0,
        "memory_offloads_activations": 0.25,
    },
    "fms-fsdp": {"memory_norm_copies": 2.0, "memory_selective_layers": 0.75, "memory_logit": 12.0},
    # Torch's own loss: a copy of the logits in single precision, their log-softmax, and the gradients of both.
    # Selective recomputation keeps every other product's output, and attention's.
    "torchtitan": {"memory_logit": 12.0, "memory_selective_share": 0.45},
    "xtuner": {"memory_logit": 12.0},
    "deepspeed": {"memory_logit": 12.0, "memory_norm_copies": 6.0},
    "llm-foundry": {"memory_activation_factor": 0.95, "memory_context_gib": 1.0},
    # Eager modules. Sharded weights are gathered for the forward pass and stay until the step.
    "litgpt": {
        "memory_spread": 0.09,
        "memory_norm_copies": 5.0,
        "memory_gathers_all": 1.0,
        "memory_quantised": 0.35,
    },
    # Zero 3 of DeepSpeed with its defaults: a billion parameters may be gathered at once, and buckets of half
    # a billion.
    "transformers": {"memory_spread": 0.1, "memory_norm_copies": 6.0, "memory_offload_gib": 7.7},
    "torchtune": {"memory_spread": 0.1, "memory_fused_logit": 0.5},
    "sailor": {
        "memory_spread": 0.03,
        "memory_activation_factor": 0.94,
        "memory_weight_extra": 14.0,
        "memory_logit": 23.6,
        "memory_fixed_gib": 3.4,
    },
}


@cache
def framework(name: str, spends: str = "") -> Framework:
    """`spends`: another state of it. Raises KeyError for a name that is not known."""
    found = replace(_FRAMEWORKS[name], times=spends)
    memory = _MEMORY.get(spends or name)
    return found if memory is None else replace(found, coefficients=found.coefficients | memory)


def names() -> tuple[str, ...]:
    return tuple(_FRAMEWORKS)
