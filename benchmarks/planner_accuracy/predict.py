"""From a row to what the cost model says about it, in the row's own units. Pure standard library.

Where a table's recipes are known to run but not how much they recompute (or move to the host), they are taken
to do as little of it as fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.planner_accuracy import groups
from benchmarks.planner_accuracy.rates import tflops
from benchmarks.planner_accuracy.rows import Reading, Row, RowError, read_row
from trainingrun.planner.cost.calibration import Corrections
from trainingrun.planner.cost.fit import fits, p_oom
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import Bill, Recompute, Workload

COLUMNS = ("predicted_peak_gib", "predicted_step_s", "predicted_tflops_per_gpu", "fits", "p_oom", "error")


@dataclass(frozen=True)
class Prediction:
    """Numbers in the units and conventions of the row's source; NaN where there is none."""

    peak: float = math.nan
    seconds: float = math.nan
    tflops: float = math.nan
    fits: bool | None = None
    p_oom: float = math.nan
    error: str = ""

    def columns(self) -> dict[str, str]:
        numbers = (self.peak, self.seconds, self.tflops)
        texts = ["" if math.isnan(number) else f"{number:.6g}" for number in numbers]
        fit = "" if self.fits is None else ("yes" if self.fits else "no")
        risk = "" if math.isnan(self.p_oom) else f"{self.p_oom:.4f}"
        return dict(zip(COLUMNS, (*texts, fit, risk, self.error), strict=True))


@cache
def _corrections() -> tuple[Corrections, Corrections]:
    """Of memory and of time, as the fits wrote them."""
    return groups.load(groups.MEMORY_FILE), groups.load(groups.TIME_FILE)


def predict(row: Row, *, corrected: bool = True) -> Prediction:
    """Never raises for a row that cannot be read: it says why."""
    try:
        reading = read_row(row)
    except RowError as error:
        return Prediction(error=str(error))
    names = groups.names(row, reading)
    memory, time = _corrections()
    memory_factor = memory.factor(names) if corrected else 1.0
    work, bills = chosen(reading, memory_factor)
    seconds = seconds_of(reading) * (time.factor(names) if corrected else 1.0)
    return Prediction(
        peak=peak(reading, bills) * memory_factor,
        seconds=seconds,
        tflops=tflops(reading, seconds),
        fits=all(fits(bill, work.machine, factor=memory_factor) for bill in bills),
        p_oom=max(p_oom(bill, work.machine, work.framework, factor=memory_factor) for bill in bills),
    )


def seconds_of(reading: Reading) -> float:
    """Of what the source timed, without corrections."""
    return step_time(reading.timed).total


def variants(reading: Reading) -> Iterator[Workload]:
    """What the row may have been, from what needs most memory to what needs least."""
    work = reading.workload
    frameworks = [work.framework]
    if reading.source.else_spends:
        other = framework(reading.source.framework, reading.source.else_spends)
        frameworks.append(replace(work.framework, coefficients=other.coefficients))
    recomputes = [work.layout.recompute]
    if reading.source.recompute == "least" and "recompute" in work.assumed:
        recomputes = [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]
    for kind in frameworks:
        for recompute in recomputes:
            if kind is work.framework and recompute is work.layout.recompute:
                yield work
            else:
                yield replace(work, framework=kind, layout=replace(work.layout, recompute=recompute))


def chosen(reading: Reading, factor: float = 1.0) -> tuple[Workload, tuple[Bill, ...]]:
    """The first variant that fits; the last one where none does."""
    for work in variants(reading):
        bills = peak_memory(work)
        if all(fits(bill, work.machine, factor=factor) for bill in bills):
            break
    return work, bills


def peak(reading: Reading, bills: tuple[Bill, ...]) -> float:
    """As the row's source measures it."""
    source = reading.source
    if source.memory == "device":
        return fullest(bills).total / source.unit
    if source.rank == "last":
        return bills[-1].allocated / source.unit
    return max(bill.allocated for bill in bills) / source.unit
