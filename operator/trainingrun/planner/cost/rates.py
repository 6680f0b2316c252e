"""How fast a machine really computes the shapes of training: shares of the data sheet's rates, by kind of
accelerator.

The shares are fitted on published measurements (`python -m benchmarks.planner_accuracy.fit` writes them to
`fitted`), and hold for all frameworks; what a framework adds is in its own coefficients (names that begin
with `time_`). A kind that nobody measured takes its largest measured matrix product, or a modest share of
the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.cost import fitted
from trainingrun.planner.cost.types import Machine
from trainingrun.planner.hardware import gpus

CPU = "cpu"  # name of machines whose cores compute
_UNKNOWN_SHARE = 0.6  # of the data sheet, for kinds that nobody measured
_MEASURED_SHARE = 0.85  # of the largest measured product
_NARROW = ("fp8", "mxfp8", "nvfp4")  # formats of matrix products only; all else stays in 16 bits


@dataclass(frozen=True, slots=True)
class Rates:
    matmul: float  # of large products in the workload's format, operations per second
    half: float  # of products in 16 bits: attention, and what is kept out of the narrow formats
    grouped: float  # of experts' products
    attention: float
    memory: float  # bytes per second
    host: float  # time to start an operation, relative to a host of 2023
    narrow: bool


def rates(machine: Machine, compute: str) -> Rates:
    if machine.name == CPU:  # measured as it is used, and no format is faster than another
        rate = machine.peak_flops["fp32"]
        return Rates(rate, rate, rate, rate, machine.memory_bytes_per_second, 1.0, narrow=False)
    gpu = gpus.find(machine.name)
    family = gpu.family if gpu else machine.name
    shares = fitted.SHARES.get(family, {})
    speed = fitted.SPEEDS.get(machine.name, 1.0)
    half = speed * _rate(machine, shares, "bf16" if "bf16" in machine.peak_flops else "fp16")
    matmul = half if compute in ("bf16", "fp16") else speed * _rate(machine, shares, compute)
    return Rates(
        matmul=matmul,
        half=half,
        grouped=matmul * shares.get("grouped", fitted.GROUPED_SHARE),
        attention=half * shares.get("attention", fitted.ATTENTION_SHARE),
        memory=machine.memory_bytes_per_second * shares.get("memory", fitted.MEMORY_SHARE),
        host=fitted.HOSTS.get(machine.name, shares.get("host", 1.0)),
        narrow=compute in _NARROW,
    )


def _rate(machine: Machine, shares: dict[str, float], compute: str) -> float:
    peak = machine.peak_flops.get(compute)
    if peak is None:
        # Formats that a machine does not have are computed in the next wider one that it has.
        return _rate(
            machine, shares, "fp16" if compute == "bf16" else "bf16" if compute != "fp16" else "fp32"
        )
    share = shares.get("fp16" if compute == "bf16" else compute)
    if share is not None:
        return peak * share
    measured = machine.measured_flops.get(compute)
    return _MEASURED_SHARE * measured if measured else _UNKNOWN_SHARE * peak
