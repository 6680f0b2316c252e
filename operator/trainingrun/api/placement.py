"""spec.scale, spec.resources, spec.parallelism: how many nodes, what each gives, how the model is split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict, Field, StrictBool, field_validator

from trainingrun.api.base import Block, describe, refusal, shorten
from trainingrun.api.cel import rule, rules
from trainingrun.api.errors import FieldError
from trainingrun.api.quantity import QUANTITY_PATTERN, RESOURCE_NAME_PATTERN, accelerator, parse_quantity

_PARALLELISM = "spec.parallelism"
MOST_NODES = 4096
MOST_PROCESSES = 64

_PLAIN_RESOURCES = ("cpu", "memory")
_LEAST = {"cpu": ("1m", 0.001), "memory": ("64Mi", 64 * 2**20)}
_MOST = {"cpu": ("1000000", 1e6), "memory": ("1Pi", 2**50)}  # above any node, and a number that JSON can hold


class Scale(Block):
    """A node is one worker pod. The run goes on with any number of nodes from minNodes to maxNodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minNodes <= self.maxNodes",
                "spec.scale.minNodes: is more than spec.scale.maxNodes; "
                "hint: lower minNodes or raise maxNodes",
                "spec.scale.minNodes: %d is more than spec.scale.maxNodes (%d); "
                "hint: lower minNodes to %d or raise maxNodes to %d",
                "self.minNodes",
                "self.maxNodes",
                "self.maxNodes",
                "self.minNodes",
            )
        )
    )
    min_nodes: int = Field(
        ge=1, le=MOST_NODES, description="Fewest nodes to train on; with fewer the run waits."
    )
    max_nodes: int = Field(ge=1, le=MOST_NODES, description="Most nodes to train on.")
    grow_hold_seconds: int = Field(
        2,
        ge=0,
        le=86400,
        description="How long a run that trains waits, after a node has become ready, for further nodes "
        "before it grows: each change of size costs a restart of the processes.",
    )

    def problems(self) -> Iterator[FieldError]:
        if self.min_nodes > self.max_nodes:
            yield FieldError(
                "minNodes",
                self.min_nodes,
                f"{self.min_nodes} is more than spec.scale.maxNodes ({self.max_nodes})",
                f"lower minNodes to {self.max_nodes} or raise maxNodes to {self.min_nodes}",
            )


class Resources(Block):
    """What each node gives to the run."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "'cpu' in self.perNode && 'memory' in self.perNode",
                "spec.resources.perNode: needs cpu and memory; hint: add them, for example "
                "{cpu: 2, memory: 4Gi}",
            ),
            rule(
                "self.perNode.all(name, name in ['cpu', 'memory'] || name.contains('/'))",
                "spec.resources.perNode: a resource other than cpu and memory is an accelerator; hint: write "
                "its full name, for example nvidia.com/gpu",
            ),
            rule(
                "self.perNode.filter(name, name.contains('/')).size() <= 1",
                "spec.resources.perNode: names more than one kind of accelerator; hint: keep one",
            ),
            rule(
                "!has(self.processesPerNode) || !self.perNode.exists(name, name.contains('/'))",
                "spec.resources.processesPerNode: there is one process for each accelerator of perNode; "
                "hint: remove it",
            ),
        )
    )
    per_node: dict[str, str] = Field(
        description="Kubernetes quantities of cpu, memory and at most one kind of accelerator (such as "
        "nvidia.com/gpu). Accelerators are counted from here and nowhere else; one that the machines do not "
        "have is an error, never a fall back to CPUs.",
        json_schema_extra={
            "minProperties": 2,
            "maxProperties": 3,
            "additionalProperties": {
                "description": "A quantity, such as 2, 500m or 4Gi.",
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY_PATTERN,
                "maxLength": 32,
            },
        },
    )
    processes_per_node: int | None = Field(
        None,
        ge=1,
        le=MOST_PROCESSES,
        description="Training processes of a node without accelerators; omitted: 1. With accelerators there "
        "is one process for each of them.",
    )

    @field_validator("per_node", mode="before")
    @classmethod
    def _quantities_are_text(cls, value: Any) -> Any:
        """`cpu: 1` and `cpu: 1.5` are numbers to YAML."""
        return (
            {name: _as_text(amount) for name, amount in value.items()} if isinstance(value, dict) else value
        )

    @field_validator("per_node")
    @classmethod
    def _known_resources(cls, value: dict[str, str]) -> dict[str, str]:
        problems = [problem for name, amount in value.items() for problem in _resource_problems(name, amount)]
        problems += [
            FieldError(
                name,
                None,
                f"required, but only {', '.join(value) or 'nothing'} is given",
                f"add {name}, for example {'cpu: 2' if name == 'cpu' else 'memory: 4Gi'}",
            )
            for name in _PLAIN_RESOURCES
            if name not in value
        ]
        kinds = [name for name in value if "/" in name]
        if len(kinds) > 1:
            message = f"{' and '.join(kinds)} are two kinds of accelerators; a run trains on one"
            problems.append(FieldError("", kinds, message, f"remove {' or '.join(kinds)}"))
        if problems:
            raise refusal(*problems)
        return value

    def problems(self) -> Iterator[FieldError]:
        found = accelerator(self.per_node)
        if found and self.processes_per_node is not None:
            name, count = found
            yield FieldError(
                "processesPerNode",
                self.processes_per_node,
                f"{self.processes_per_node} is given, but there is one process for each of the {count} "
                f"{name} of "
                "spec.resources.perNode",
                "remove processesPerNode",
            )

    @property
    def processes(self) -> int:
        """Training processes of one node."""
        found = accelerator(self.per_node)
        return found[1] if found else self.processes_per_node or 1


class Axes(Block):
    """Pinned sizes of mesh axes. Data parallelism is never set: it follows from the number of nodes."""

    tensor: int | None = Field(
        None, ge=1, le=256, description="Processes that split each layer; omitted: planned."
    )
    pipeline: int | None = Field(
        None, ge=1, le=1024, description="Groups of layers that processes work on in turn; omitted: planned."
    )
    context: int | None = Field(
        None, ge=1, le=256, description="Processes that share the tokens of each sequence; omitted: 1."
    )


class DeepSpeedEngine(Block):
    """How ZeRO divides the state of training among the processes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.offload != 'OptimizerAndParameters' || !has(self.zeroStage) || self.zeroStage == 3",
                f"{_PARALLELISM}.deepspeed.offload: OptimizerAndParameters needs zeroStage 3, which alone cuts the "
                "weights; hint: use Optimizer, or zeroStage: 3",
            ),
        )
    )
    zero_stage: int | None = Field(
        None,
        ge=1,
        le=3,
        description="What each process keeps a part of only. 1: optimizer state. 2: gradients too. 3: weights too, "
        "which are gathered layer by layer. Omitted: planned, the lowest that fits.",
    )
    offload: Literal["None", "Optimizer", "OptimizerAndParameters"] = Field(
        "None",
        description="What is kept in the memory of the host and not of the accelerators. Without accelerators it is "
        "the same memory.",
    )

    def problems(self) -> Iterator[FieldError]:
        if self.offload == "OptimizerAndParameters" and self.zero_stage not in (None, 3):
            yield FieldError(
                "offload",
                self.offload,
                f"{self.offload} needs zeroStage 3, which alone cuts the weights, but it is {self.zero_stage}",
                "use Optimizer, or zeroStage: 3",
            )


class Parallelism(Block):
    """How the model is split. Whatever is omitted is planned, and shown in status with its reason."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.deepspeed) || self.engine == 'DeepSpeed'",
                f"{_PARALLELISM}.deepspeed: does nothing with engine Native; hint: remove it, or use engine: "
                "DeepSpeed",
            ),
            rule(
                "!has(self.engine) || self.engine != 'DeepSpeed' || "
                "(!self.sequenceParallel && self.pipelineSchedule == 'Auto' && "
                "(!has(self.axes.tensor) || self.axes.tensor == 1) && "
                "(!has(self.axes.pipeline) || self.axes.pipeline == 1) && "
                "(!has(self.axes.context) || self.axes.context == 1))",
                f"{_PARALLELISM}.engine: DeepSpeed splits by data only, but other axes are asked for; hint: remove "
                "axes, pipelineSchedule and sequenceParallel, or use engine: Native",
            ),
        )
    )
    engine: Literal["Native", "DeepSpeed"] = Field(
        "Native",
        description="What splits and trains the model. Native: PyTorch's own FSDP2, tensor and pipeline parallelism; "
        "the run goes on at any size from minNodes to maxNodes. DeepSpeed: ZeRO, at one fixed size.",
    )
    deepspeed: DeepSpeedEngine | None = Field(
        None, description="For the engine DeepSpeed only; omitted: planned, without offload."
    )
    axes: Axes = Field(
        default_factory=lambda: Axes.model_validate({}),
        description="Axes with a fixed size.",
        json_schema_extra={"default": {}},
    )
    pipeline_schedule: Literal["Auto", "1F1B", "Interleaved1F1B", "ZBV"] = Field(
        "Auto",
        description="How the stages of a pipeline take turns. Auto: 1F1B, which keeps the fewest activations. The "
        "others give each process two stages: Interleaved1F1B halves the idle time, ZBV fills most of it.",
    )
    sequence_parallel: StrictBool = Field(
        False,
        description="Whether the processes of a tensor group also share the tokens of what lies between their layers: "
        "less memory for activations, the same bytes between processes. Only matters with tensor above 1.",
    )
    activation_checkpointing: Literal["Auto", "None", "Selective", "Full"] = Field(
        "Auto",
        description="Layers that keep only their input and are computed again in the backward pass: none, every "
        "second, or all. Auto: as few as fit. Loss and gradients are the same.",
    )

    def problems(self) -> Iterator[FieldError]:
        if self.engine != "DeepSpeed":
            if self.deepspeed is not None:
                message = "does nothing with engine Native"
                yield FieldError("deepspeed", None, message, "remove it, or use engine: DeepSpeed")
            return
        asked: list[tuple[str, object]] = [
            (f"axes.{axis}", degree)
            for axis, degree in self.axes.model_dump().items()
            if degree not in (None, 1)
        ]
        asked += [("sequenceParallel", True)] if self.sequence_parallel else []
        asked += [("pipelineSchedule", self.pipeline_schedule)] if self.pipeline_schedule != "Auto" else []
        for field, value in asked:
            yield FieldError(
                field, value, "the engine DeepSpeed splits by data only", "remove it, or use engine: Native"
            )


def _as_text(amount: Any) -> Any:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        return amount
    return str(amount) if isinstance(amount, int) else repr(amount)


def _resource_problems(name: str, amount: str) -> Iterator[FieldError]:
    path = f'["{name}"]' if "/" in name else name
    if name not in _PLAIN_RESOURCES and not ("/" in name and re.fullmatch(RESOURCE_NAME_PATTERN, name)):
        fix = "use cpu, memory or the full name of an accelerator, such as nvidia.com/gpu"
        yield FieldError(path, amount, f"unknown resource {shorten(name)} ({amount})", fix)
        return
    if not re.fullmatch(QUANTITY_PATTERN, amount):
        example = "4Gi" if name == "memory" else "2"
        yield FieldError(path, amount, f"{describe(amount)} is not a quantity", f"write it like {example}")
        return
    value = parse_quantity(amount)
    if name in _LEAST:
        (least, least_value), (most, most_value) = _LEAST[name], _MOST[name]
        if value < least_value:
            yield FieldError(
                path, amount, f"{amount} is less than the minimum, {least}", _more(name, amount, least)
            )
        if value > most_value:
            yield FieldError(
                path, amount, f"{amount} is more than the maximum, {most}", "write what one node has"
            )
    elif not 1 <= value <= MOST_PROCESSES or value != int(value):
        message = f"{amount} is not a whole number of accelerators from 1 to {MOST_PROCESSES}"
        yield FieldError(path, amount, message, "write how many of them one node has")


def _more(name: str, amount: str, least: str) -> str:
    if name == "memory" and amount.isdigit():
        return f"memory is in bytes: did you mean {amount}Gi?"
    return f"use at least {least}"
