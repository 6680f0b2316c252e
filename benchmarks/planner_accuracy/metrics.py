"""How far predictions are from measurements, and whether they order a sweep as it was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.planner_accuracy.rows import OUTCOMES, Reading, Row
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


def sweeps(rows: Sequence[Row]) -> list[np.ndarray]:
    """Indices of the rows of each sweep."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        found[tuple(row[column] for column in SWEEP)].append(index)
    return [np.array(members) for members in found.values() if len(members) >= SMALLEST_SWEEP]


def tau(rows: Sequence[Row], predicted: np.ndarray, measured: np.ndarray) -> float:
    """Mean of Kendall's tau over the sweeps."""
    return float(np.mean([kendall(predicted[own], measured[own]) for own in sweeps(rows)]))


def tau_of_one_fit(
    rows: Sequence[Row], results: Sequence[np.ndarray], folds: Sequence[np.ndarray], measured: np.ndarray
) -> float:
    """The same, of pairs that one fit predicted and has not seen: rows of different folds are predicted by different
    fits, and comparing these says little about any. `results` and `folds`: of each seed.
    """
    found = []
    for own in sweeps(rows):
        balance = left = right = 0.0
        for predicted, fold in zip(results, folds, strict=True):
            together = fold[own][:, None] == fold[own][None]
            a = np.sign(predicted[own][:, None] - predicted[own][None]) * together
            b = np.sign(measured[own][:, None] - measured[own][None]) * together
            balance, left, right = balance + (a * b).sum(), left + abs(a).sum(), right + abs(b).sum()
        found.append(balance / np.sqrt(left * right) if left and right else 0.0)
    return float(np.mean(found))


def most_tau(rows: Sequence[Row], measured: np.ndarray, noise: float) -> tuple[float, float]:
    """What can be had. The first: knowing the mean time of each configuration, as the columns tell them apart. The
    second: knowing that, and the times measured once more, with `noise` (standard deviation of logarithms).
    """
    texts = [
        repr([value for key, value in row.items() if key not in (*OUTCOMES, "source_ref")]) for row in rows
    ]
    same = np.unique(texts, return_inverse=True)[1]
    mean = (np.bincount(same, measured) / np.bincount(same))[same]
    draw = np.random.RandomState(0)
    again = [mean + noise * draw.standard_normal(len(mean)) for _ in range(40)]
    return tau(rows, mean, measured), float(np.mean([tau(rows, mean, one) for one in again]))


def constant_utilisation(
    readings: Sequence[Reading], measured: np.ndarray, folds: np.ndarray | None = None
) -> np.ndarray:
    """The baseline: each kind of accelerator and format reaches one share of its rate, whatever it computes.
    With `folds`, the share is what the other folds reached; of all kinds together, where there is no such row.
    """
    ideal = np.log([_ideal(reading) for reading in readings])
    kinds = np.array(
        [f"{one.workload.machine.name} {one.workload.numerics.compute}" for one in readings], dtype=object
    )
    groups = np.zeros(len(readings), dtype=int) if folds is None else folds
    predicted = np.zeros(len(readings))
    for fold in np.unique(groups):
        taught = np.full(len(readings), True) if folds is None else groups != fold
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
