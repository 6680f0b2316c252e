"""`spec.parallelism.engine`, and what the engine DeepSpeed cannot do: said before anything is started.

Everything else of a run is the same under both engines. A combination is refused here when it was not proven to train
as the engine Native does; the API refuses most of them already, when the run is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.config.training import TrainingConfig
from trainer.errors import ConfigError
from trainingrun.protocol.records import NATIVE

DEEPSPEED = "DeepSpeed"
ENGINES = (NATIVE, DEEPSPEED)
OFFLOADS = ("None", "Optimizer", "OptimizerAndParameters")
STAGES = (1, 2, 3)
_WHERE = "spec.parallelism"


@dataclass(frozen=True)
class EngineConfig:
    name: str = NATIVE
    zero_stage: int | None = None  # None: as the plan says
    offload: str = "None"


def read_engine(spec: dict[str, Any], training: TrainingConfig) -> EngineConfig:
    """Raises ConfigError."""
    parallelism = spec.get("parallelism") or {}
    name = parallelism.get("engine") or NATIVE
    if name not in ENGINES:
        raise ConfigError(f"{_WHERE}.engine", name, "not an engine", f"use one of {', '.join(ENGINES)}")
    block = parallelism.get("deepspeed") or {}
    if name == NATIVE:
        if block:
            problem = "only the engine DeepSpeed reads it"
            raise ConfigError(
                f"{_WHERE}.deepspeed", block, problem, f"remove it, or set {_WHERE}.engine to DeepSpeed"
            )
        return EngineConfig()
    stage, offload = block.get("zeroStage"), block.get("offload") or "None"
    if stage not in (None, *STAGES):
        raise ConfigError(f"{_WHERE}.deepspeed.zeroStage", stage, "not a stage of ZeRO", "use 1, 2 or 3")
    if offload not in OFFLOADS:
        raise ConfigError(
            f"{_WHERE}.deepspeed.offload", offload, "not supported", f"use one of {', '.join(OFFLOADS)}"
        )
    if offload == "OptimizerAndParameters" and stage not in (None, 3):
        raise ConfigError(
            f"{_WHERE}.deepspeed.offload",
            offload,
            f"ZeRO {stage} keeps whole weights on each process",
            "use Optimizer, or zeroStage 3",
        )
    for field, value, problem, fix in _unable(parallelism, training):
        raise ConfigError(field, value, f"the engine DeepSpeed {problem}", fix)
    return EngineConfig(name, stage, offload)


def _unable(parallelism: dict[str, Any], training: TrainingConfig) -> Iterator[tuple[str, object, str, str]]:
    """(field, value, problem, fix) of what only the engine Native does."""
    native = f"or use {_WHERE}.engine Native"
    for axis, degree in (parallelism.get("axes") or {}).items():
        if degree not in (None, 1):
            yield f"{_WHERE}.axes.{axis}", degree, "splits by data only", f"remove it, {native}"
    if parallelism.get("sequenceParallel"):
        yield f"{_WHERE}.sequenceParallel", True, "has no tensor groups", f"remove it, {native}"
    if training.precision not in ("FP32", "BF16"):
        fix = f"use FP32 or BF16, {native}"
        yield "spec.training.precision", training.precision, "computes in FP32 and BF16 only", fix
    if training.optimizer.name != "AdamW":
        fix = f"use AdamW, {native}"
        yield "spec.training.optimizer.name", training.optimizer.name, "updates by AdamW only", fix
    overrides = training.overrides
    for field, value, given, problem in (
        ("zLoss", overrides.z_loss, overrides.z_loss > 0, "adds no z-loss"),
        ("emaDecay", overrides.ema_decay, overrides.ema_decay is not None, "keeps no average of the weights"),
        (
            "compile",
            overrides.compile,
            overrides.compile,
            "hangs its own code on each layer, which is not compiled",
        ),
    ):
        if given:
            yield f"spec.training.overrides.{field}", value, problem, f"remove it, {native}"
