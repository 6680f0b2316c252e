"""Metrics of predictions where a table gives what was measured, beside what one would use without a cost model.

Memory: mean absolute percentage error; out of memory: whether "fits" was right. Time: the same error, its
median and 90th percentile, and Kendall's tau inside a sweep: rows that differ in the layout only. Pure
standard library.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.planner_accuracy.baselines import constant_utilisation, megatron_formula
from benchmarks.planner_accuracy.cells import outcome
from benchmarks.planner_accuracy.predict import Prediction
from benchmarks.planner_accuracy.rows import Row

SWEEP = ("source", "model", "gpu", "gpus", "seq_len", "global_batch", "precision")
SMALLEST_SWEEP = 5
MODERN = ("megatron-lm ci", "simumax", "megatron-bridge", "kwai")


@dataclass(frozen=True)
class Scored:
    row: Row
    prediction: Prediction

    def measured(self, column: str) -> float:
        return outcome(self.row, column)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread(errors: Sequence[float]) -> str:
    if not errors:
        return "no rows"
    return (
        f"{len(errors):4} rows  MAPE {100 * fmean(errors):6.2f} %  median {100 * median(errors):6.2f} %  "
        f"p90 {100 * quantile(errors, 0.9):6.2f} %"
    )


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Tau-b: pairs in order minus pairs out of order, over pairs that are not tied on a side."""
    balance = left_free = right_free = 0
    for first in range(len(left)):
        for second in range(first):
            a, b = left[first] - left[second], right[first] - right[second]
            balance += (a * b > 0) - (a * b < 0)
            left_free += a != 0
            right_free += b != 0
    total = math.sqrt(left_free * right_free)
    return balance / total if total else math.nan


def taus(scored: Sequence[Scored], predicted: Callable[[Scored], float]) -> list[float]:
    sweeps: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        if not math.isnan(one.measured("step_time_s")) and not math.isnan(predicted(one)):
            sweeps[tuple(one.row.get(column) or "" for column in SWEEP)].append(one)
    found = [
        kendall([predicted(one) for one in own], [one.measured("step_time_s") for one in own])
        for own in sweeps.values()
        if len(own) >= SMALLEST_SWEEP
    ]
    return [tau for tau in found if not math.isnan(tau)]


def errors(
    scored: Sequence[Scored], column: str, predicted: Callable[[Scored], float]
) -> dict[str, list[float]]:
    """By source."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in scored:
        measured, own = one.measured(column), predicted(one)
        if not math.isnan(measured) and not math.isnan(own):
            found[one.row.get("source") or ""].append(abs(own / measured - 1))
    return found


def _flat(groups: Mapping[str, Sequence[float]], only: Sequence[str] = ()) -> list[float]:
    return [
        value
        for source, values in groups.items()
        if not only or any(word in source.lower() for word in only)
        for value in values
    ]


def out_of_memory(scored: Sequence[Scored], complete: Callable[[Row], bool]) -> list[str]:
    counts: dict[tuple[bool, str, bool], int] = defaultdict(int)
    for one in scored:
        told = (one.row.get("oom") or "").strip()
        if told in ("yes", "no") and one.prediction.fits is not None:
            counts[complete(one.row), told, one.prediction.fits] += 1
    lines = []
    for whole, title in ((True, "all fields given"), (False, "fields assumed")):
        missed, caught = counts[whole, "yes", True], counts[whole, "yes", False]
        false, right = counts[whole, "no", False], counts[whole, "no", True]
        lines.append(
            f"  {title:18} out of memory: {caught} told, {missed} called fitting; "
            f"fitting: {right} told, {false} called out of memory ({_percent(false, false + right)})"
        )
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def report(scored: Sequence[Scored], complete: Callable[[Row], bool]) -> str:
    memory = errors(scored, "peak_mem_gb", lambda one: one.prediction.peak)
    seconds = errors(scored, "step_time_s", lambda one: one.prediction.seconds)
    rates = errors(scored, "tflops_per_gpu", lambda one: one.prediction.tflops)
    constant = constant_utilisation([one.row for one in scored])
    plain = errors(scored, "step_time_s", lambda one: constant.get(id(one.row), math.nan))
    formula = errors(scored, "peak_mem_gb", lambda one: megatron_formula(one.row))
    unread = sum(bool(one.prediction.error) for one in scored)
    lines = [f"{len(scored)} rows, {unread} not read", "", "Peak memory"]
    lines.append(f"  {'all':44} {spread(_flat(memory))}")
    lines.append(f"  {'current Megatron':44} {spread(_flat(memory, MODERN))}")
    lines.append(f"  {'Megatron formula, current Megatron':44} {spread(_flat(formula, MODERN))}")
    for source, own in memory.items():
        lines.append(f"    {source[:42]:42} {spread(own)}")
        if any(word in source.lower() for word in MODERN):
            lines.append(f"      {'by the formula of Megatron':40} {spread(formula[source])}")
    lines += ["", "Out of memory", *out_of_memory(scored, complete), "", "Step time"]
    lines.append(f"  {'all':44} {spread(_flat(seconds))}")
    lines.append(f"  {'constant utilisation (of these rows)':44} {spread(_flat(plain))}")
    for title, which in (
        ("Kendall tau, sweeps", lambda one: one.prediction.seconds),
        ("the same, constant utilisation", lambda one: constant.get(id(one.row), math.nan)),
    ):
        found = taus(scored, which)
        lines.append(
            f"  {title:44} {fmean(found):.2f} in {len(found)} sweeps" if found else f"  {title}: none"
        )
    lines += [f"    {source[:42]:42} {spread(own)}" for source, own in seconds.items()]
    lines += ["", "TFLOPS of an accelerator", f"  {'all':44} {spread(_flat(rates))}"]
    return "\n".join(lines)
