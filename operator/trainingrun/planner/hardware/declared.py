"""Machines that no table knows: in numbers that a user gives, or that the trainer measured when a run began.

A shape that is declared is believed, but not when it is impossible: every field that is missing or absurd is
refused by name, with the range that machines of today have. Pure; called by the CLI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.planner.cost.rates import CPU
from trainingrun.planner.cost.types import Link, Machine
from trainingrun.planner.errors import PlanInputError

GIB = 1 << 30
ACCELERATOR = "accelerator"
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class _Field:
    name: str
    unit: float  # of the number that is given
    least: float
    most: float
    meaning: str
    default: float | None = None  # None: must be given


# Ranges are wide: from a T4 or one CPU core to several times the fastest accelerator that is sold.
FIELDS: tuple[_Field, ...] = (
    _Field("accelerators", 1, 1, 1024, "accelerators of a node"),
    _Field("memoryGiB", GIB, 0.25, 2048, "memory of one accelerator that torch can use, in GiB"),
    _Field("memoryBandwidthGBs", _GIGA, 1, 100_000, "memory bandwidth of one accelerator, in GB/s"),
    _Field(
        "bf16Teraflops", _TERA, 0.001, 100_000, "dense BF16 (or FP16) rate of one accelerator, in TFLOP/s"
    ),
    _Field("fp32Teraflops", _TERA, 0.001, 10_000, "FP32 rate of one accelerator, in TFLOP/s", 0.0),
    _Field("fp8Teraflops", _TERA, 0.001, 200_000, "dense FP8 rate of one accelerator, in TFLOP/s", 0.0),
    _Field(
        "localLinkGBs",
        _GIGA,
        0.1,
        20_000,
        "what one accelerator sends to its neighbours, in GB/s and one direction",
    ),
    _Field(
        "networkGBs",
        _GIGA,
        0.01,
        2_000,
        "what one accelerator sends to other nodes, in GB/s and one direction",
    ),
    _Field("hostLinkGBs", _GIGA, 0.1, 2_000, "what one accelerator sends to its host, in GB/s", 25.0),
    _Field(
        "domain", 1, 0, 4096, "accelerators that share the local links, where that is more than a node", 0.0
    ),
    _Field("pricePerHour", 1, 0, 1_000_000, "price of a node for an hour", math.nan),
)
_LOCAL_HOP_SECONDS, _NETWORK_HOP_SECONDS, _START_SECONDS = 2e-6, 6e-6, 40e-6


def declared_machine(shape: Mapping[str, Any], *, path: str = "hardware", name: str = "declared") -> Machine:
    """`shape`: fields of `FIELDS` by name, and `device`: a node of accelerators, or of processes that train on cores.
    Raises PlanInputError naming the field, its value and the fix."""
    known = {"device", *(entry.name for entry in FIELDS)}
    for key in shape:
        if key not in known:
            raise PlanInputError(
                f"{path}.{key}",
                shape[key],
                f"{key} is no field of a machine",
                f"use: {', '.join(sorted(known))}",
            )
    device = shape.get("device", ACCELERATOR)
    if device not in (CPU, ACCELERATOR):
        raise PlanInputError(
            f"{path}.device", device, f"{device!r} is no kind of machine", f"use {ACCELERATOR} or {CPU}"
        )
    value = {entry.name: _number(entry, shape, path) for entry in FIELDS}
    if value["networkGBs"] > value["localLinkGBs"] and value["accelerators"] > 1:
        raise PlanInputError(
            f"{path}.localLinkGBs",
            shape["localLinkGBs"],
            "neighbours of a node would talk slower than strangers",
            "give localLinkGBs and networkGBs for one accelerator and one direction, both in GB/s",
        )
    rates = {"fp32": value["fp32Teraflops"], "fp8": value["fp8Teraflops"], "mxfp8": value["fp8Teraflops"]}
    rates |= {"bf16": value["bf16Teraflops"], "fp16": value["bf16Teraflops"]}
    local, network = value["localLinkGBs"], value["networkGBs"]
    price = value["pricePerHour"]
    return Machine(
        name=CPU if device == CPU else name,
        accelerators=int(value["accelerators"]),
        memory_bytes=int(value["memoryGiB"]),
        memory_bytes_per_second=value["memoryBandwidthGBs"],
        peak_flops={key: rate for key, rate in rates.items() if rate},
        measured_flops={},
        inside=Link(local, _LOCAL_HOP_SECONDS, local * _START_SECONDS),
        between=Link(network, _NETWORK_HOP_SECONDS, network * _START_SECONDS),
        domain=int(value["domain"]),
        host_link=Link(value["hostLinkGBs"], 1e-5, 1e6),
        price_per_hour=None if math.isnan(price) else price,
    )


def _number(entry: _Field, shape: Mapping[str, Any], path: str) -> float:
    given = shape.get(entry.name)
    if given is None:
        if entry.default is not None:
            return entry.default * entry.unit
        raise PlanInputError(
            f"{path}.{entry.name}",
            None,
            f"the {entry.meaning} is not given",
            f"give a number from {entry.least:g} to {entry.most:g}",
        )
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not entry.least <= given <= entry.most:  # no comparison with NaN is true
        raise PlanInputError(
            f"{path}.{entry.name}",
            given,
            f"{str(given)[:40]} cannot be the {entry.meaning}",
            f"give a number from {entry.least:g} to {entry.most:g}",
        )
    return float(given) * entry.unit
