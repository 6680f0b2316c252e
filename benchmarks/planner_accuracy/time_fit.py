"""The coefficients of the time model as parameters to fit, and where their values go.

A coefficient of `COMMON` holds for all frameworks; a framework's own is a factor on it, held near one by its
prior, so that few rows change little. Shares of the data sheet's rates belong to kinds of accelerators,
starting times to kinds of hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.planner_accuracy.fitting import Parameter
from trainingrun.planner.cost import fitted
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import Workload
from trainingrun.planner.hardware import gpus

FIXED = ("matmul", "attention", "data_cost", "host_memory")  # of COMMON: known, or one by definition
COMMON_WIDTH = 0.5
COMMON_WIDTHS = {"idle": 0.1}  # known within a tenth: idle accelerators cool, and clock higher afterwards
SHARE_WIDTH = 0.2
HOST_WIDTH = 0.4
SPEED_WIDTH = 0.08  # products of one kind differ by power and cooling, beyond their data sheets
OWN = {
    "matmul": 0.072,
    "attention": 0.18,
    "element_passes": 0.24,
    "tensor_exposed": 0.3,
    "context_exposed": 0.3,
    "expert_exposed": 0.3,
    "transfer_exposed": 0.18,
    "data_hidden": 0.25,
    "data_cost": 0.35,
    "idle": 0.1,
    "shard_member": 1.2,
    "accumulate_bytes": 0.42,
    "wave": 0.42,
    "product_bytes": 0.24,
    "start_layer": 0.3,
    "start_experts": 0.24,
    "start_stage": 0.3,
    "start_step": 0.072,
    "load_batch": 0.3,
}
OWN_WIDTHS = {("megatron-one-node", "load_batch"): 5.0}  # what is known to differ


def _whose(work: Workload) -> str:
    return work.framework.times or work.framework.name


@dataclass
class TimeTables:
    """The tables of `fitted` while they are being fitted."""

    workloads: list[Workload]
    own: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in {_whose(work) for work in self.workloads}:
            self.own[name] = {}
            fitted.FRAMEWORKS[name] = dict(fitted.COMMON)

    def put(self, one: Parameter, value: float) -> None:
        kind, _, name = one.table.partition(":")
        if kind == "common":
            fitted.COMMON[one.key] = value
            for framework, table in fitted.FRAMEWORKS.items():
                table[one.key] = value * self.own[framework].get(one.key, 1.0)
        elif kind == "framework":
            self.own[name][one.key] = value
            fitted.FRAMEWORKS[name][one.key] = fitted.COMMON[one.key] * value
        elif kind == "share":
            fitted.SHARES[name][one.key] = value
        elif kind == "host":
            fitted.HOSTS[one.key] = value
        elif kind == "speed":
            fitted.SPEEDS[one.key] = value
        else:
            setattr(fitted, one.key, value)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.array([math.log(step_time(self.workloads[row]).total) for row in rows])


def parameters(workloads: list[Workload]) -> list[Parameter]:
    everything = np.arange(len(workloads))
    frameworks = np.array([_whose(work) for work in workloads])
    machines = np.array([work.machine.name for work in workloads])
    families = np.array([found.family if (found := gpus.find(name)) else name for name in machines])
    found = [
        Parameter("common", key, value, COMMON_WIDTHS.get(key, COMMON_WIDTH), everything)
        for key, value in START_COMMON.items()
        if key not in FIXED
    ]
    found += [Parameter("global", key, value, 0.3, everything) for key, value in START_GLOBAL.items()]
    for family in sorted(set(families)):
        rows = np.flatnonzero(families == family)
        for key, value in START_SHARES.get(family, {}).items():
            width = HOST_WIDTH if key == "host" else SHARE_WIDTH
            found.append(Parameter(f"share:{family}", key, value, width, rows))
    for name, value in START_HOSTS.items():
        found.append(Parameter("host", name, value, HOST_WIDTH, np.flatnonzero(machines == name)))
    for name in sorted(set(machines)):
        found.append(Parameter("speed", name, 1.0, SPEED_WIDTH, np.flatnonzero(machines == name)))
    for framework in sorted(set(frameworks)):
        rows = np.flatnonzero(frameworks == framework)
        for key, width in OWN.items():
            own = OWN_WIDTHS.get((framework, key), width)
            found.append(Parameter(f"framework:{framework}", key, 1.0, own, rows))
    return found


# Where fits begin and what priors lean to: from data sheets, sizes of kernels, and plain reasoning; not from rows.
START_SHARES: dict[str, dict[str, float]] = {
    "volta": {"fp16": 0.55, "host": 1.5},
    "turing": {"fp16": 0.5, "host": 1.5},
    "ampere": {"fp16": 0.8, "host": 1.4},
    "ada": {"fp16": 0.7, "fp8": 0.6},
    "hopper": {"fp16": 0.72, "fp8": 0.6},
    "blackwell": {"fp16": 0.7, "fp8": 0.62, "mxfp8": 0.62, "nvfp4": 0.55, "attention": 0.65, "host": 1.0},
    "cdna": {"fp16": 0.5, "fp8": 0.45},
}
START_HOSTS = {"NVIDIA-GB200": 1.3, "NVIDIA-GB300": 1.0, "NVIDIA-GH200-480GB": 1.0}
START_GLOBAL = {"GROUPED_SHARE": 0.75, "ATTENTION_SHARE": 0.65}
START_COMMON: dict[str, float] = {
    "matmul": 1.0,
    "ragged": 1.2,
    "product_bytes": 1.0,
    "wave": 1.8e6,
    "accumulate_bytes": 8.0,
    "cast_bytes": 3.0,
    "attention": 1.0,
    "attention_whole": 1.5,
    "misaligned": 1.5,
    "score_bytes": 10.0,
    "element_passes": 2.5,
    "scan_passes": 20.0,
    "permute_passes": 3.0,
    "loss_bytes": 24.0,
    "loss_bytes_fused": 10.0,
    "widen_bytes": 9.0,
    "tensor_exposed": 0.8,
    "context_exposed": 0.3,
    "expert_exposed": 0.8,
    "expert_far": 1.5,
    "transfer_exposed": 0.3,
    "idle": 1.0,
    "data_hidden": 0.7,
    "data_contention": 0.1,
    "data_cost": 1.0,
    "shard_member": 2e-5,
    "update_passes": 1.3,
    "host_memory": 1e11,
    "start_layer": 3.5e-3,
    "start_tensor": 2e-3,
    "start_context": 2e-3,
    "start_experts": 4e-3,
    "start_expert": 5e-4,
    "start_scores": 1e-3,
    "start_narrow": 1e-3,
    "start_latent": 2e-3,
    "start_head_norms": 5e-4,
    "start_adapters": 1e-3,
    "start_shards": 1e-3,
    "start_stage": 1e-3,
    "start_offload": 2e-2,
    "start_step": 0.02,
    "load_batch": 2e-4,
}


@dataclass(frozen=True)
class Table:
    """The tables of `fitted` as they are, for a fit that begins there instead of at its priors."""

    common: dict[str, float]
    frameworks: dict[str, dict[str, float]]
    shares: dict[str, dict[str, float]]
    hosts: dict[str, float]
    speeds: dict[str, float]
    others: dict[str, float]

    @classmethod
    def now(cls) -> Table:
        return cls(
            dict(fitted.COMMON),
            {name: dict(own) for name, own in fitted.FRAMEWORKS.items()},
            {name: dict(own) for name, own in fitted.SHARES.items()},
            dict(fitted.HOSTS),
            dict(fitted.SPEEDS),
            {key: float(getattr(fitted, key)) for key in START_GLOBAL},
        )

    def logarithms(self, every: list[Parameter]) -> np.ndarray:
        """Of each parameter over its start; a parameter that the tables do not have is at its start."""
        return np.array([math.log((self._value(one) or one.start) / one.start) for one in every])

    def _value(self, one: Parameter) -> float | None:
        kind, _, name = one.table.partition(":")
        if kind == "framework":
            common, own = self.common.get(one.key), self.frameworks.get(name, {}).get(one.key)
            return own / common if own and common else None
        table = {"common": self.common, "host": self.hosts, "speed": self.speeds, "global": self.others}
        return (self.shares.get(name, {}) if kind == "share" else table[kind]).get(one.key)


def reset() -> None:
    """Back to where fits begin."""
    fitted.COMMON.clear()
    fitted.COMMON.update(START_COMMON)
    fitted.SHARES.update({family: dict(shares) for family, shares in START_SHARES.items()})
    fitted.HOSTS.clear()
    fitted.HOSTS.update(START_HOSTS)
    fitted.SPEEDS.clear()
    fitted.GROUPED_SHARE, fitted.ATTENTION_SHARE = (
        START_GLOBAL["GROUPED_SHARE"],
        START_GLOBAL["ATTENTION_SHARE"],
    )
    fitted.FRAMEWORKS.clear()


FILE = '''"""Coefficients of the time model, fitted on published measurements. Written by

    python -m benchmarks.planner_accuracy.fit --write

and by nothing else. What each means: `planner.cost.time`, which reads them, and
`benchmarks.planner_accuracy.time_fit`, which says where the fit began.
"""

SHARES: dict[str, dict[str, float]] = {shares}
HOSTS: dict[str, float] = {hosts}
SPEEDS: dict[str, float] = {speeds}
GROUPED_SHARE = {grouped}
ATTENTION_SHARE = {attention}
MEMORY_SHARE = {memory}
COMMON: dict[str, float] = {common}
# Of a framework where it differs from COMMON.
_OWN: dict[str, dict[str, float]] = {own}
FRAMEWORKS: dict[str, dict[str, float]] = {{name: COMMON | own for name, own in _OWN.items()}}
'''


def source_text(tables: TimeTables) -> str:
    """`fitted.py` with the values that the tables have now."""
    own = {
        name: {key: fitted.COMMON[key] * value for key, value in factors.items() if abs(value - 1) > 0.002}
        for name, factors in sorted(tables.own.items())
    }
    return FILE.format(
        shares=_nested({family: fitted.SHARES[family] for family in START_SHARES}),
        hosts=_flat(fitted.HOSTS),
        speeds=_flat(fitted.SPEEDS),
        grouped=f"{fitted.GROUPED_SHARE:.4g}",
        attention=f"{fitted.ATTENTION_SHARE:.4g}",
        memory=fitted.MEMORY_SHARE,
        common=_flat(fitted.COMMON),
        own=_nested(own),
    )


def _flat(table: dict[str, float], indent: str = "") -> str:
    lines = [f'{indent}    "{key}": {float(f"{value:.4g}")!r},\n' for key, value in table.items()]
    return "{\n" + "".join(lines) + indent + "}"


def _nested(tables: dict[str, dict[str, float]]) -> str:
    return "{\n" + "".join(f'    "{name}": {_flat(table, "    ")},\n' for name, table in tables.items()) + "}"
