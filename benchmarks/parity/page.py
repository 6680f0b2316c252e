"""docs/parity.md, from measured rows. Pure: what is said is computed from the rows that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.parity.matrix import FP32_LIMITS, FP64_LIMITS, STEPS, Row

_HEAD = """# Parity

Written by `python -m benchmarks.parity` (trainer's environment, from the root of the checkout); do not edit.

Each row trains a tiny model for {steps} steps on ragged documents, once with our layout of processes and once with a
plain loop: transformers' model, torch's AdamW and `clip_grad_norm_`, one document at a time, one process, and none of
our code. Same initial weights, AdamW at 3e-3, gradients clipped to 1, weight decay 0.1. The figures are the largest
differences of any step's loss, of any step's gradient norm before clipping, and of any weight after the last step.
Limits: {limits}. "Processes" talk over gloo on one machine of CPUs; nothing here was run on accelerators.

transformers' RMS norms compute in float32 at any precision, which hides in FP64 what rounding could not explain. So
both sides have norms that stay in FP64, except in the row that says so: there they are those of transformers.

| model | layout | schedule | processes | precision | loss | norm | weights | plain loss | |
|---|---|---|---|---|---|---|---|---|---|
"""

_TAIL = """
{good} of {all} rows are within their limits. torch {torch}, transformers {transformers}.

What is not here is refused before a process starts: mixtures of experts, and whatever
`trainingrun plan` names with field, value and fix. The loss is always parallel over the vocabulary under tensor
parallelism.
"""


@dataclass(frozen=True)
class Measured:
    row: Row
    loss: float
    norm: float
    parameters: float
    first_loss: float
    last_loss: float
    least_norm: float

    @property
    def problem(self) -> str:
        """Why the row does not count as parity, or an empty string."""
        found = zip(
            ("loss", "norm", "weights"),
            (self.loss, self.norm, self.parameters),
            self.row.limits,
            strict=True,
        )
        beyond = [f"{name} {value:.1e} > {limit:g}" for name, value, limit in found if not value <= limit]
        if not self.last_loss < self.first_loss - 1:
            beyond.append("the loss does not fall")
        if not self.least_norm > 1:
            beyond.append("clipping does not always act")
        return ", ".join(beyond)


def page(measured: Sequence[Measured], versions: dict[str, str]) -> str:
    limits = (
        f"FP64 {FP64_LIMITS[0]:g} for loss and norm, {FP64_LIMITS[2]:g} for weights; FP32 {FP32_LIMITS[0]:g} for the "
        "loss, as rounding alone moves it by about 1e-6"
    )
    head = _HEAD.format(steps=STEPS, limits=limits)
    good = sum(not one.problem for one in measured)
    tail = _TAIL.format(good=good, all=len(measured), **versions)
    return head + "\n".join(_line(one) for one in measured) + "\n" + tail


def _line(one: Measured) -> str:
    row = one.row
    cells = [
        row.model,
        row.layout,
        row.schedule,
        str(row.processes),
        row.precision,
        f"{one.loss:.1e}",
        f"{one.norm:.1e}",
        f"{one.parameters:.1e}",
        f"{one.first_loss:.2f} to {one.last_loss:.2f}",
        one.problem or "ok",
    ]
    return f"| {' | '.join(cells)} |"
