"""Measurements by system and fault, and the table that is printed of them. Used by both recovery benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CAP_SECONDS = 120.0


@dataclass
class Rows:
    """Measurements by system and fault; None: not within the cap."""

    seconds: dict[tuple[str, str], list[float | None]] = field(default_factory=dict)
    steps_lost: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)

    def add(self, system: str, fault: str, seconds: float | None, steps_lost: int | None) -> None:
        self.seconds.setdefault((system, fault), []).append(seconds)
        self.steps_lost.setdefault((system, fault), []).append(steps_lost)
        shown = f"{seconds:.2f} s" if seconds is not None else f"not within {CAP_SECONDS:g} s"
        print(f"  {system}: {fault}: {shown}, {steps_lost} steps lost", file=sys.stderr, flush=True)

    def p50(self, system: str, fault: str) -> float:
        """Infinite when nothing was measured."""
        return quantile(self.seconds.get((system, fault), [None]), 0.5)

    def most_lost(self, system: str, fault: str) -> int:
        lost = self.steps_lost.get((system, fault), [])
        return max((value for value in lost if value is not None), default=0)

    def table(self, faults: Sequence[str]) -> str:
        lines = [
            f"{'fault':34}{'system':22}{'p50 s':>8}{'min':>8}{'max':>8}{'steps lost (max)':>18}{'tries':>7}"
        ]
        for fault in faults:
            for system in dict.fromkeys(system for system, _ in self.seconds):
                seconds = self.seconds.get((system, fault))
                if not seconds:
                    continue
                figures = [quantile(seconds, share) for share in (0.5, 0.0, 1.0)]
                shown = "".join(_figure(figure) for figure in figures)
                lost = self.most_lost(system, fault)
                lines.append(f"{fault:34}{system:22}{shown}{lost:18}{len(seconds):7}")
        return "\n".join(lines)

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "system": system,
                "fault": fault,
                "seconds": seconds,
                "steps_lost": self.steps_lost[system, fault],
            }
            for (system, fault), seconds in self.seconds.items()
        ]


def quantile(values: Sequence[float | None], share: float) -> float:
    """A missing value is beyond the cap, and counts as infinite."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def verdict(met: bool, text: str) -> str:
    """A bar beside what it really is."""
    return f"{'met   ' if met else 'MISSED'}  {text}"


def _figure(seconds: float) -> str:
    return f"{seconds:8.2f}" if seconds < CAP_SECONDS else f"{f'>{CAP_SECONDS:g}':>8}"
