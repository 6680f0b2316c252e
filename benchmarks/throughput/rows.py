"""Rows of the throughput benchmark: from turns to figures, bars and text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.rows import verdict
from benchmarks.throughput.cases import Case
from benchmarks.throughput.timing import Rates, ratio


@dataclass(frozen=True)
class Row:
    """Ours beside one other contestant."""

    case: str
    processes: int
    layout: str  # of ours
    other: str
    ours_tokens_per_second: float
    other_tokens_per_second: float
    ratio: float  # of the medians
    least: float  # of the pairs of turns
    most: float
    turns: int
    bar: float | None  # None: informative

    @property
    def met(self) -> bool:
        return self.bar is None or self.ratio >= self.bar

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Share:
    """How much of a step of ours is none of forward, backward, gradient sum and optimizer."""

    case: str
    processes: int
    step_seconds: float
    parts: dict[str, float]  # seconds
    bar: float | None

    @property
    def overhead(self) -> float:
        return 1 - sum(self.parts.values()) / self.step_seconds

    @property
    def met(self) -> bool:
        return self.bar is None or self.overhead <= self.bar

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "overhead": self.overhead, "met": self.met}


def rows_of(
    case: Case, processes: int, layout: str, ours: Rates, others: dict[str, Rates], *, held: bool
) -> list[Row]:
    """`held`: whether the bars count for this number of processes."""
    found = []
    for name, other in others.items():
        measured = ratio(ours, other)
        found.append(
            Row(
                case=case.name,
                processes=processes,
                layout=layout,
                other=name,
                ours_tokens_per_second=ours.middle,
                other_tokens_per_second=other.middle,
                ratio=measured.of_medians,
                least=measured.least,
                most=measured.most,
                turns=len(ours.by_turn),
                bar=case.bars.get(name) if held else None,
            )
        )
    return found


def counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def told(row: Row) -> str:
    text = (
        f"{row.case}, {counted(row.processes)}: {row.ratio:.3f} x {row.other}"
        f" ({row.least:.3f} to {row.most:.3f}; {row.ours_tokens_per_second:.0f} against"
        f" {row.other_tokens_per_second:.0f} tokens/s)"
    )
    return f"       {text}" if row.bar is None else verdict(row.met, f"{text}, bar {row.bar:g}")


def told_share(share: Share) -> str:
    parts = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in share.parts.items())
    text = (
        f"{share.case}, {counted(share.processes)}: {share.overhead:.1%} of a step of {share.step_seconds:.3f} s"
        f" outside ({parts})"
    )
    return f"       {text}" if share.bar is None else verdict(share.met, f"{text}, bar {share.bar:.0%}")


HEAD = """`make bench-throughput`. Each contestant is started once and then stopped (SIGSTOP) but for its turns, which
alternate; a turn's rate is that of the whole steps in it. FP32, AdamW (fused everywhere), clipping to 1,
cosine, the same global batch, {cores} cores for all processes of a contestant together. Ours is the ranks'
own program on the layout that the planner gives it, with memory snapshots (their share of a step is added
to each step), durable checkpoints every ten minutes (none fell into a turn), the log of reads and the log
of steps; the others save and log nothing. Ours keeps documents apart; the others' blocks do not, which
spares them the mask.

| case | processes | our layout | beside | ours, tokens/s | its, tokens/s | ratio of medians | by turn | bar | |
|---|---|---|---|---|---|---|---|---|---|
"""

SHARE_HEAD = """
Where a step of ours goes, by clocks in the rank's own program (`benchmarks/throughput/split.py`). "Outside" is all that
is none of the three, the norm for clipping and the share of snapshots included:

| case | processes | step | forward and backward | sum of gradients | optimizer | outside | bar | |
|---|---|---|---|---|---|---|---|---|
"""


def page(rows: Sequence[Row], shares: Sequence[Share], cores: int) -> str:
    text = HEAD.format(cores=cores) + "\n".join(_line(row) for row in rows) + "\n"
    if not shares:
        return text + "\nWhere a step of ours goes was not measured in this run (`--share`).\n"
    return text + SHARE_HEAD + "\n".join(_share_line(share) for share in shares) + "\n"


def _line(row: Row) -> str:
    cells = [
        row.case,
        str(row.processes),
        row.layout,
        row.other,
        f"{row.ours_tokens_per_second:,.0f}",
        f"{row.other_tokens_per_second:,.0f}",
        f"{row.ratio:.3f}",
        f"{row.least:.3f} to {row.most:.3f}",
        *_bar(row.bar, f"≥ {row.bar}", row.met),
    ]
    return f"| {' | '.join(cells)} |"


def _share_line(share: Share) -> str:
    cells = [
        share.case,
        str(share.processes),
        f"{share.step_seconds:.3f} s",
        *(f"{seconds:.3f} s" for seconds in share.parts.values()),
        f"{share.overhead:.1%}",
        *_bar(share.bar, f"≤ {share.bar:.0%}" if share.bar is not None else "", share.met),
    ]
    return f"| {' | '.join(cells)} |"


def _bar(bar: float | None, text: str, met: bool) -> tuple[str, str]:
    return ("", "informative") if bar is None else (text, "met" if met else "**missed**")
