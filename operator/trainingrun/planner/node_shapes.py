"""A node's shape for the planner from a machine that somebody named or declared, for a manifest's other needs.

The manifest may ask for no accelerators, or for others: a named machine replaces what it says about those, and
nothing else. Pure; called by the CLI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.api.quantity import accelerator, parse_bytes, parse_quantity
from trainingrun.planner.cost.rates import CPU as CPU_DEVICE
from trainingrun.planner.cost.types import Machine
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.cpu import CPU
from trainingrun.planner.hardware.declared import ACCELERATOR
from trainingrun.planner.hardware.gpus import find
from trainingrun.planner.hardware.links import NETWORK_SHARE
from trainingrun.planner.hardware.naming import resource_of
from trainingrun.planner.inputs import CONTEXT_BYTES, LINK_SHARE, MATMUL_SHARE
from trainingrun.planner.types import NodeShape
from trainingrun.protocol.records import MachineSpeed

_FORMATS = {"BF16": ("bf16",), "FP16": ("fp16", "bf16"), "FP32": ("fp32",), "FP64": ("fp64",)}


def accelerators_asked(spec: Mapping[str, Any]) -> int | None:
    """How many the manifest asks for in each node; None: it trains on cores."""
    asked = accelerator(spec["resources"]["perNode"])
    return asked[1] if asked else None


def node_of(machine: Machine, spec: Mapping[str, Any], *, path: str = "--hardware") -> NodeShape:
    """Raises PlanInputError for a format that the accelerators do not compute in."""
    per_node, precision = spec["resources"]["perNode"], spec["training"]["precision"]
    if machine.name == CPU_DEVICE:
        return _cores(machine, precision, path)
    gpu = find(machine.name)
    link = machine.between.bytes_per_second
    if gpu is not None:  # a node's is of the line's rate, as `inputs.accelerator_node` has it
        link *= LINK_SHARE / NETWORK_SHARE
    own = accelerators_asked(spec) is not None  # cores and memory of the manifest are those of such a node
    return NodeShape(
        processes=machine.accelerators,
        memory_bytes=machine.memory_bytes * machine.accelerators,
        cores=parse_quantity(per_node["cpu"]) if own else 0.0,
        device=resource_of(machine),
        flops_per_second=_rate(machine, precision, path) * MATMUL_SHARE,
        link_bytes_per_second=link * machine.accelerators,
        local_link_bytes_per_second=machine.inside.bytes_per_second,
        reserved_bytes_per_process=CONTEXT_BYTES,
        host_memory_bytes=parse_bytes(per_node["memory"]) if own else 0,
        memory_bytes_per_second=machine.memory_bytes_per_second,
        name=machine.name,
    )


def _cores(machine: Machine, precision: str, path: str) -> NodeShape:
    """Processes that share the cores and the network of a node."""
    return NodeShape(
        processes=machine.accelerators,
        memory_bytes=machine.memory_bytes * machine.accelerators,
        cores=0.0,
        device=CPU_DEVICE,
        # Double precision is half as fast on cores.
        flops_per_second=0.5 * _rate(machine, "FP32", path)
        if precision == "FP64"
        else _rate(machine, precision, path),
        link_bytes_per_second=machine.between.bytes_per_second * machine.accelerators,
        local_link_bytes_per_second=machine.inside.bytes_per_second,
        reserved_bytes_per_process=CPU.process_bytes + CPU.node_bytes // machine.accelerators,
        memory_bytes_per_second=machine.memory_bytes_per_second,
        name=CPU_DEVICE,
    )


def _rate(machine: Machine, precision: str, path: str) -> float:
    known = find(machine.name)
    if precision == "FP64" and known is not None:
        return known.fp64_flops
    for name in _FORMATS[precision]:
        if machine.peak_flops.get(name):
            return machine.peak_flops[name]
    have = ", ".join(sorted(name.upper() for name in machine.peak_flops))
    raise PlanInputError(
        path,
        machine.name,
        f"{machine.name} has no rate in {precision} (spec.training.precision); it computes in {have}",
        "use FP16 with loss scaling, or newer accelerators"
        if precision == "BF16"
        else f"declare its rate ({precision.lower()}Teraflops), or use another precision",
    )


def declaration(node: NodeShape, speed: MachineSpeed, precision: str) -> dict[str, Any]:
    """The shape of a node as its ranks measured it, in the fields of `hardware.declared`. Links that the run did not
    use are the node's as planned.
    """
    cpu = node.device == CPU_DEVICE
    rate = speed.matmul_flops / 1e12
    # On cores no format is counted on to be faster than FP32, and FP64 is half as fast. What is declared of
    # accelerators is what their data sheets say.
    rate *= (2.0 if precision == "FP64" else 1.0) if cpu else 1.0 / MATMUL_SHARE
    formats = {"fp32Teraflops": rate} if cpu or precision == "FP32" else {}
    formats["bf16Teraflops"] = rate
    between = speed.link_bytes_per_second or node.link_bytes_per_second / node.processes
    inside = speed.local_link_bytes_per_second or max(between, node.local_link_bytes_per_second)
    return {
        "device": CPU_DEVICE if cpu else ACCELERATOR,
        "accelerators": node.processes,
        "memoryGiB": node.memory_bytes / node.processes / (1 << 30),
        "memoryBandwidthGBs": speed.memory_bytes_per_second / 1e9,
        **formats,
        "localLinkGBs": max(inside, between) / 1e9,
        "networkGBs": between / 1e9,
    }
