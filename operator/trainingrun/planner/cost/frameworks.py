"""Implementations of training by name, and what each spends: named coefficients, measured ones told apart from facts.

Memory coefficients begin with `memory_`, those of time with `time_`; whoever reads one gives the default that holds
for a framework that nobody measured. Nothing here depends on a model's name or on a row of measurements.
"""

from __future__ import annotations

from trainingrun.planner.cost.types import Framework

_FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework("native", {}),
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
        Framework("torchtune", {}),
        Framework("torchtitan", {}),
        Framework("fms-fsdp", {}),
        Framework("automodel", {}),
        Framework("jax", {}),
        Framework("colossalai", {}),
        Framework("xtuner", {}),
        Framework("transformers", {}),
        Framework("primus", {}),
        Framework("deepspeed", {}),
    )
}


def framework(name: str) -> Framework:
    """Raises KeyError for a name that is not known."""
    return _FRAMEWORKS[name]


def names() -> tuple[str, ...]:
    return tuple(_FRAMEWORKS)
