"""What a run of the engine DeepSpeed may not ask for, outside of spec.parallelism: in Python, and as rules for the API
server. The trainer proves no more than what is left: AdamW in FP32 and BF16, at one size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainingrun.api.cel import rule
from trainingrun.api.errors import FieldError

if TYPE_CHECKING:
    from trainingrun.api.models import TrainingRunSpec

PRECISIONS = ("FP32", "BF16")
OPTIMIZERS = ("AdamW",)
_NATIVE = "or spec.parallelism.engine: Native"
_ONE_SIZE = "a run of the engine DeepSpeed has one size"


def _unless(condition: str) -> str:
    return f"self.parallelism.engine != 'DeepSpeed' || ({condition})"


RULES = (
    rule(
        _unless("self.scale.minNodes == self.scale.maxNodes"),
        f"spec.scale.minNodes: {_ONE_SIZE}, so it must be spec.scale.maxNodes; hint: make them equal, {_NATIVE}",
        f"spec.scale.minNodes: {_ONE_SIZE}, but %d is not spec.scale.maxNodes (%d); hint: make them equal, {_NATIVE}",
        "self.scale.minNodes",
        "self.scale.maxNodes",
    ),
    rule(
        _unless(
            "self.scale.minNodes == oldSelf.scale.minNodes && self.scale.maxNodes == oldSelf.scale.maxNodes"
        ),
        f"spec.scale: {_ONE_SIZE}, by which its state is cut; hint: begin another run with another checkpoint "
        "location; the engine Native resizes",
        f"spec.scale.maxNodes: {_ONE_SIZE}, by which its state is cut: it has %d nodes and cannot get %d; hint: begin "
        "another run with another checkpoint location; the engine Native resizes",
        "oldSelf.scale.maxNodes",
        "self.scale.maxNodes",
    ),
    rule(
        _unless(f"self.training.precision in {list(PRECISIONS)}"),
        f"spec.training.precision: the engine DeepSpeed computes in FP32 and BF16 only; hint: use one, {_NATIVE}",
    ),
    rule(
        _unless(f"self.training.optimizer.name in {list(OPTIMIZERS)}"),
        f"spec.training.optimizer.name: the engine DeepSpeed updates by AdamW only; hint: use AdamW, {_NATIVE}",
    ),
    rule(
        _unless(
            "(!has(self.training.overrides.zLoss) || self.training.overrides.zLoss == 0.0) && "
            "!has(self.training.overrides.emaDecay) && !self.training.overrides.compile"
        ),
        "spec.training.overrides: the engine DeepSpeed has no zLoss, emaDecay and compile; hint: remove them, "
        f"{_NATIVE}",
    ),
)


def problems(spec: TrainingRunSpec) -> Iterator[FieldError]:
    if spec.parallelism.engine != "DeepSpeed":
        return
    scale, training = spec.scale, spec.training
    if scale.min_nodes != scale.max_nodes:
        yield FieldError(
            "scale.minNodes",
            scale.min_nodes,
            f"{_ONE_SIZE}, but {scale.min_nodes} is not spec.scale.maxNodes ({scale.max_nodes})",
            f"set both to {scale.min_nodes} or {scale.max_nodes}, {_NATIVE}",
        )
    if training.precision not in PRECISIONS:
        message = f"the engine DeepSpeed computes in {' and '.join(PRECISIONS)} only"
        yield FieldError("training.precision", training.precision, message, f"use one of them, {_NATIVE}")
    if training.optimizer.name not in OPTIMIZERS:
        name = training.optimizer.name
        yield FieldError(
            "training.optimizer.name",
            name,
            "the engine DeepSpeed updates by AdamW only",
            f"use AdamW, {_NATIVE}",
        )
    overrides = training.overrides
    for field, value in (
        ("zLoss", overrides.z_loss or None),
        ("emaDecay", overrides.ema_decay),
        ("compile", overrides.compile or None),
    ):
        if value is not None:
            yield FieldError(
                f"training.overrides.{field}",
                value,
                f"the engine DeepSpeed has no {field}",
                f"remove it, {_NATIVE}",
            )
