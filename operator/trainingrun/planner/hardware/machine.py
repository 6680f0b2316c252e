"""A `Machine` from names: an accelerator, how many a node has, and what connects them.

Used by the planner for nodes that it knows by label or instance type, and by the benchmark that judges the
cost model on published measurements, whose tables name machines in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from trainingrun.planner.cost.types import Link, Machine
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware import cpu
from trainingrun.planner.hardware.gpus import GIB, GPUS, Gpu, find
from trainingrun.planner.hardware.instances import instance
from trainingrun.planner.hardware.labels import INSTANCE_TYPES, gpu_of
from trainingrun.planner.hardware.links import local_link, network_link, network_of

_CPU_HOP_SECONDS = 50e-6


@lru_cache(maxsize=256)
def machine(
    gpu_name: str,
    gpus_per_node: int | None = None,
    interconnect: str = "",
    price_per_hour: float | None = None,
) -> Machine:
    """Raises PlanInputError for a name that the table does not have. `interconnect`: in words ("NVLink4 +
    8x400Gb/s"), or an instance type; what they do not say is that of the accelerator's usual node.
    """
    gpu = find(gpu_name)
    if gpu is None:
        raise PlanInputError(
            "gpu",
            gpu_name,
            f"{gpu_name} is not an accelerator that the planner knows",
            f"declare its shape, or use one of: {', '.join(entry.name for entry in GPUS)}",
        )
    per_node = gpus_per_node or gpu.per_node
    if per_node < 1:
        raise PlanInputError("gpusPerNode", per_node, "a node has at least one accelerator", "use 1 or more")
    known = instance(interconnect)
    share = known.link_bytes_per_second if known else network_of(interconnect, per_node)
    return _of(gpu, per_node, share or gpu.link_bytes_per_second, price_per_hour)


def instance_machine(name: str, price_per_hour: float | None = None) -> Machine:
    found = instance(name)
    if found is None:
        raise PlanInputError(
            "instanceType",
            name,
            f"{name} is not an instance type that the planner knows",
            "declare its shape, or name the accelerator",
        )
    return machine(found.gpu, found.accelerators, found.name, price_per_hour)


def node_machine(
    labels: Mapping[str, str], accelerators: int, price_per_hour: float | None = None
) -> Machine | None:
    """Of a node with these labels that offers so many accelerators; None where it has none. Raises
    PlanInputError for those that training refuses (`hardware.labels`). The network is that of the instance
    type, where the table has it.
    """
    gpu = gpu_of(labels)
    if gpu is None or accelerators < 1:
        return None
    for key in INSTANCE_TYPES:
        known = instance(labels.get(key, ""))
        if known is not None and known.gpu == gpu.name:
            return _of(gpu, accelerators, known.network_gbps * 1e9 / 8 / accelerators, price_per_hour)
    return _of(gpu, accelerators, gpu.link_bytes_per_second, price_per_hour)


def _of(gpu: Gpu, per_node: int, network: float, price: float | None) -> Machine:
    return Machine(
        name=gpu.name,
        accelerators=per_node,
        memory_bytes=int(gpu.memory_gib * GIB),
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        peak_flops=_rates(
            gpu.fp32_flops,
            gpu.bf16_flops if gpu.bf16 else 0.0,
            gpu.bf16_flops,
            gpu.fp8_flops,
            gpu.fp4_flops,
            tf32=gpu.bf16_flops / 2 if gpu.bf16 else 0.0,
        ),
        measured_flops=_rates(
            0.0,
            gpu.measured_bf16_flops if gpu.bf16 else 0.0,
            gpu.measured_bf16_flops,
            gpu.measured_fp8_flops,
            0.0,
        ),
        inside=local_link(gpu),
        between=network_link(network),
        domain=gpu.domain,
        host_link=Link(0.8 * gpu.host_link_bytes_per_second, 1e-5, 1e6),
        price_per_hour=price,
    )


def _rates(
    fp32: float, bf16: float, fp16: float, fp8: float, fp4: float, *, tf32: float = 0.0
) -> dict[str, float]:
    every = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": fp16, "fp8": fp8, "mxfp8": fp8, "nvfp4": fp4}
    return {name: rate for name, rate in every.items() if rate}


def cpu_machine(
    processes: int, cores: float, memory_bytes: int, price_per_hour: float | None = None
) -> Machine:
    """A node that trains on its cores, which its processes share evenly."""
    facts = cpu.CPU
    rate = facts.fp32_flops_per_core * cores / processes
    return Machine(
        name="cpu",
        accelerators=processes,
        memory_bytes=memory_bytes // processes,
        memory_bytes_per_second=facts.memory_bytes_per_second,
        peak_flops=_rates(rate, rate, rate, 0.0, 0.0),
        measured_flops=_rates(rate, rate, rate, 0.0, 0.0),
        inside=Link(facts.local_link_bytes_per_second, _CPU_HOP_SECONDS, 1e5),
        between=Link(facts.link_bytes_per_second / processes, 2 * _CPU_HOP_SECONDS, 1e5),
        price_per_hour=price_per_hour,
    )
