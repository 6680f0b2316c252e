"""Rows of the memory benchmark: the planner's bill beside the peak of the fullest rank, part by part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEBI = 1 << 20
# What the planner may be wrong by: it leaves this much free of each process' memory (`memory.MARGIN_PERCENT`), and a
# prediction that is far too high wastes machines.
LOW_BAR, HIGH_BAR = 1.04, 1.5


@dataclass(frozen=True)
class Real:
    """One rank's memory, in bytes."""

    base: int  # before it trains: interpreter and libraries, shared with the fork server or not
    peak: int
    snapshots: int
    libraries: int  # read from files while it trained

    @property
    def training(self) -> int:
        """Peak of weights, gradients, optimizer, activations and what the allocator lost between them."""
        return self.peak - self.base - self.snapshots - self.libraries


@dataclass(frozen=True)
class Predicted:
    process: int  # interpreter and libraries
    snapshots: int  # the two memory snapshots
    training: int  # everything else, with the copy that a checkpoint is written from

    @property
    def total(self) -> int:
        return self.process + self.snapshots + self.training


@dataclass(frozen=True)
class Row:
    case: str
    precision: str
    activations: str
    layout: str
    real: Real
    predicted: Predicted

    @property
    def ratio(self) -> float:
        """Real beside predicted."""
        return self.real.peak / self.predicted.total

    @property
    def training_ratio(self) -> float:
        return self.real.training / self.predicted.training

    @property
    def met(self) -> bool:
        return 1 / HIGH_BAR <= self.ratio <= LOW_BAR

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ratio": self.ratio,
            "trainingRatio": self.training_ratio,
            "met": self.met,
        }


HEAD = """`make bench-memory`: the fullest rank of each run, with snapshots at every step and a durable checkpoint on
its way; what `/proc` says beside the planner's bill, in MiB. "Process" is the interpreter with its
libraries before training, in which forks share pages with their server but each counts them; "snapshots"
are the two in memory; "training" is all else: weights, gradients, optimizer, activations, logits, buffers
and the copy that a checkpoint is written from, with what the allocator loses between tensors. A plan must
not be more than 4 % low, which is what it leaves free, nor 50 % high.

| model | precision | recomputed | layout | process | snapshots | training | its ratio | peak | ratio | |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def page(rows: Sequence[Row]) -> str:
    return HEAD + "\n".join(_line(row) for row in rows) + "\n\nEach cell: real / predicted.\n"


def told(row: Row) -> str:
    return (
        f"{row.case}, {row.precision}, recompute {row.activations}, {row.layout}: {row.real.peak / MEBI:.0f} MiB,"
        f" {row.ratio:.2f} x predicted (training {row.training_ratio:.2f} x), bar {1 / HIGH_BAR:.2f} to {LOW_BAR:g}"
    )


def _line(row: Row) -> str:
    real, predicted = row.real, row.predicted
    cells = [
        row.case,
        row.precision,
        row.activations,
        row.layout,
        _pair(real.base + real.libraries, predicted.process),
        _pair(real.snapshots, predicted.snapshots),
        _pair(real.training, predicted.training),
        f"{row.training_ratio:.2f}",
        _pair(real.peak, predicted.total),
        f"{row.ratio:.2f}",
        "ok" if row.met else "**missed**",
    ]
    return f"| {' | '.join(cells)} |"


def _pair(real: int, predicted: int) -> str:
    return f"{real / MEBI:,.0f} / {predicted / MEBI:,.0f}"
