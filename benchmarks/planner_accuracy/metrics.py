"""How far predictions are from measurements, and whether they order a sweep as it was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.planner_accuracy.rows import Reading, Row
from trainingrun.planner.cost.compute import flops_per_token

SWEEP = ("source", "model", "gpu", "gpus", "seq_len", "global_batch", "precision")
SMALLEST_SWEEP = 5


def errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return np.abs(predicted / measured - 1)


def summary(error: np.ndarray) -> tuple[float, float, float]:
    """Mean, median and 90th percentile, in percent."""
    return float(error.mean()) * 100, float(np.median(error)) * 100, float(np.quantile(error, 0.9)) * 100


def text(values: Sequence[float]) -> str:
    return f"MAPE {values[0]:5.1f} %  median {values[1]:5.1f} %  p90 {values[2]:5.1f} %"


def line(predicted: np.ndarray, measured: np.ndarray) -> str:
    return text(summary(errors(predicted, measured)))


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """Tau-b: pairs in order minus pairs out of order, over pairs that are not tied on a side."""
    agree = disagree = left_ties = right_ties = 0
    for first in range(len(left)):
        for second in range(first):
            a, b = left[first] - left[second], right[first] - right[second]
            if a == 0 and b == 0:
                continue
            if a == 0:
                left_ties += 1
            elif b == 0:
                right_ties += 1
            elif (a > 0) == (b > 0):
                agree += 1
            else:
                disagree += 1
    total = agree + disagree
    if total == 0:
        return 0.0
    return (agree - disagree) / float(np.sqrt((total + left_ties) * (total + right_ties)))


def sweep_taus(rows: Sequence[Row], predicted: np.ndarray) -> list[float]:
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        found[tuple(row[column] for column in SWEEP)].append(index)
    return [
        kendall(
            [float(predicted[one]) for one in members], [float(rows[one]["step_time_s"]) for one in members]
        )
        for members in found.values()
        if len(members) >= SMALLEST_SWEEP
    ]


def sweeps(rows: Sequence[Row], predicted: np.ndarray) -> str:
    taus = sweep_taus(rows, predicted)
    return f"tau {np.mean(taus):.2f} ({len(taus)} sweeps)" if taus else ""


def constant_utilisation(
    rows: Sequence[Row], readings: Sequence[Reading], measured: np.ndarray, folds: np.ndarray | None = None
) -> np.ndarray:
    """The baseline: each kind of accelerator and format reaches one share of its rate, whatever it computes.
    With `folds`, the share is what the other folds reached; of all kinds together, where there is no such row.
    """
    ideal = np.log([_ideal(reading) for reading in readings])
    kinds = np.array(
        [f"{one.workload.machine.name} {one.workload.numerics.compute}" for one in readings], dtype=object
    )
    groups = np.zeros(len(rows), dtype=int) if folds is None else folds
    predicted = np.zeros(len(rows))
    for fold in np.unique(groups):
        taught = np.full(len(rows), True) if folds is None else groups != fold
        usual = np.median((measured - ideal)[taught])
        for kind in np.unique(kinds[groups == fold]):
            own = taught & (kinds == kind)
            share = np.median((measured - ideal)[own]) if own.any() else usual
            out = (groups == fold) & (kinds == kind)
            predicted[out] = ideal[out] + share
    return predicted


def _ideal(reading: Reading) -> float:
    work = reading.timed
    flops = flops_per_token(work.model, work.sequence_length) * work.sequence_length * work.global_batch
    peak = work.machine.peak_flops.get(work.numerics.compute) or max(work.machine.peak_flops.values())
    return flops / peak / work.layout.world


def by_source(sources: np.ndarray, error: np.ndarray) -> None:
    for source in dict.fromkeys(sources):
        own = np.abs(np.exp(error[sources == source]) - 1)
        print(f"  {source[:46]:46} {len(own):4} rows  {text(summary(own))}")


def describe(row: Row) -> str:
    columns = (
        "source",
        "model",
        "gpu",
        "gpus",
        "seq_len",
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "vpp",
        "micro_batch",
        "grad_accum",
    )
    return " ".join(f"{column}={row[column]}" for column in columns)
