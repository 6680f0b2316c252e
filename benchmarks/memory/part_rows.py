"""Rows of memory by part: bytes of live tensors beside the planner's bill, and whether each part is within the bar.
Pure but for running the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.memory.part_cases import PartCase
from benchmarks.memory.parts import Allocated, measure
from benchmarks.memory.world import on_ranks
from trainingrun.planner.types import MemoryBill

BAR = 0.05
MEBI = 1 << 20


@dataclass(frozen=True)
class PartRow:
    case: PartCase
    allocated: Allocated
    bill: MemoryBill

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """(predicted, allocated) bytes. What FSDP2 gathers, messages and logits are with the activations."""
        real, bill = self.allocated, self.bill
        return {
            "weights": (bill.weights, real.weights),
            "gradients": (bill.gradients, real.gradients),
            "optimizer": (bill.optimizer, real.optimizer),
            "activations": (bill.activations + bill.logits + bill.buffers, real.activations),
        }

    @property
    def worst(self) -> float:
        """How far the worst part is off, as a share of what was allocated."""
        return max(abs(predicted / real - 1) for predicted, real in self.parts.values())

    @property
    def met(self) -> bool:
        return self.worst <= BAR

    @property
    def setting(self) -> str:
        case = self.case
        said = [case.precision, case.optimizer]
        said += [f"recompute {case.recompute}"] if case.recompute != "None" else []
        said += [f"{axis} {degree}" for axis, degree in case.axes.items()]
        said += [case.schedule, f"rank {self.allocated.pipeline_rank}"] if "pipeline" in case.axes else []
        said += ["sequence parallel"] if case.sequence_parallel else []
        return ", ".join([*said, f"{case.micro_batch} x {case.accumulation}"])

    def as_json(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "setting": self.setting,
            "allocated": asdict(self.allocated),
            "predicted": {part: predicted for part, (predicted, _) in self.parts.items()},
            "worst": self.worst,
            "met": self.met,
        }


def rows_of(case: PartCase) -> list[PartRow]:
    """One for each stage of a pipeline."""
    found = on_ranks(measure, case.rung.world, case)
    by_stage = {one.pipeline_rank: one for one in found}
    return [PartRow(case, one, case.bill(stage)) for stage, one in sorted(by_stage.items())]


HEAD = """Part by part: live tensors of our own trainer's ranks, counted at each operation of two real steps, beside
the bill, in MiB. "Activations" is everything else at the fullest moment: what layers keep and work with, logits,
gathered weights and what communication holds. With one micro-batch a step it is the most that this took at any time:
its gradients come only as activations go, and the bill counts both in full. Bar: each part within 5 %.

| model | setting | weights | gradients | optimizer | activations | predicted / allocated, worst part | |
|---|---|---|---|---|---|---|---|
"""


def page(rows: Sequence[PartRow]) -> str:
    verdict = f"\n\nEach cell: allocated / predicted. {_sum(rows)}\n"
    return HEAD + "\n".join(_line(row) for row in rows) + verdict


def told(row: PartRow) -> str:
    return f"{row.case.name}, {row.setting}: worst part {100 * row.worst:.1f} % off, bar {100 * BAR:g} %"


def _line(row: PartRow) -> str:
    cells = [f"{real / MEBI:.2f} / {predicted / MEBI:.2f}" for predicted, real in row.parts.values()]
    ratios = (predicted / real for predicted, real in row.parts.values())
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    cells = [row.case.name, row.setting, *cells, f"{worst:.3f}", "ok" if row.met else "**missed**"]
    return f"| {' | '.join(cells)} |"


def _sum(rows: Iterable[PartRow]) -> str:
    worst = [row.worst for row in rows]
    met = sum(row <= BAR for row in worst)
    return (
        f"{met} of {len(worst)} rows within the bar; the worst part of all is {100 * max(worst):.1f} % off."
    )
