"""Fits the time model to published measurements and says how well it does on rows and sources that it has
not seen.

    python -m benchmarks.planner_accuracy.fit --rows FILE.csv              # in sample, by row and by source
    python -m benchmarks.planner_accuracy.fit --rows FILE.csv --write      # coefficients and corrections, to
    their files

Needs numpy (the trainer's environment). By row: folds that are drawn anew for each seed, everything
(coefficients and corrections) fitted without the fold. By source: all rows of a source left out together;
its own corrections are then unknown.
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.planner_accuracy import groups, metrics, time_fit
from benchmarks.planner_accuracy.cells import outcome
from benchmarks.planner_accuracy.fitting import solve
from benchmarks.planner_accuracy.rates import tflops
from benchmarks.planner_accuracy.rows import Reading, Row, RowError, read_row
from trainingrun.planner.cost import fitted
from trainingrun.planner.cost.calibration import Corrections, Observation, learn

LOW_QUALITY_WEIGHT = 0.3  # rows with assumed fields teach less
NOISY = (
    "ci golden",
)  # times of tests, on machines that other tests share: the same twice differs by a tenth
FAR = 0.07  # residuals beyond count as if they were there, when corrections are learned
FOLDS = 5
NOISE = 0.023  # the same configuration measured again, by the releases of one vendor (2.2 % apart, median)
UNSURE = {"layers", "hidden"}  # rates of models that are guessed teach nothing
TAIL = 0.5  # residuals (logarithms) beyond are taken for mistakes of tables


@dataclass
class Data:
    rows: list[Row]
    readings: list[Reading]
    measured: np.ndarray  # logarithms of seconds
    weights: np.ndarray
    names: list[dict[str, str]]
    tables: time_fit.TimeTables
    begun: time_fit.Table  # coefficients before

    @property
    def told(self) -> np.ndarray:
        """Rows whose times are told: metrics are of these. Where only a rate is, it teaches."""
        return np.flatnonzero([not math.isnan(outcome(row, "step_time_s")) for row in self.rows])

    @property
    def sources(self) -> np.ndarray:
        return np.array([row["source"] for row in self.rows])


def read(file: Path) -> Data:
    rows, readings, seconds = [], [], []
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            try:
                reading = read_row(row)
            except RowError:
                continue
            time = _seconds(row, reading)
            if math.isnan(time):
                continue
            rows.append(row)
            readings.append(reading)
            seconds.append(time)
    begun = time_fit.Table.now()
    time_fit.reset()
    return Data(
        rows,
        readings,
        np.log(seconds),
        np.array([_weight(row) for row in rows]),
        [groups.names(row, reading) for row, reading in zip(rows, readings, strict=True)],
        time_fit.TimeTables([reading.timed for reading in readings]),
        begun,
    )


def _seconds(row: Row, reading: Reading) -> float:
    """Of a step, or what its rate comes to: tables of long sequences give rates only. NaN where neither is told, or
    the model is not.
    """
    told = outcome(row, "step_time_s")
    if not math.isnan(told) or UNSURE & set(reading.workload.assumed):
        return told
    return tflops(reading, 1.0) / outcome(row, "tflops_per_gpu")


def _weight(row: Row) -> float:
    noisy = any(word in row["source"].lower() for word in NOISY)
    return LOW_QUALITY_WEIGHT if noisy or row["quality"] != "good" else 1.0


def fit(
    data: Data, taught: np.ndarray, start: np.ndarray | None, iterations: int
) -> tuple[np.ndarray, Corrections]:
    """Coefficients from the rows `taught`, then corrections from what remains there; the tables hold the
    coefficients.
    """
    found = time_fit.parameters(data.tables.workloads)
    weights = data.weights * taught
    model = (found, data.tables.put, data.tables.predict, data.measured, weights)
    if start is None:  # outliers are told from rows that are merely far from where fits begin
        start = solve(*model, iterations=iterations)
    theta = solve(*model, start=start, iterations=iterations, tail=TAIL)
    rows = np.flatnonzero(weights)
    residuals = data.measured[rows] - data.tables.predict(rows)
    observations = [
        Observation(data.names[row], float(residual), float(data.weights[row]))
        for row, residual in zip(rows, residuals, strict=True)
    ]
    return theta, learn(observations, groups.TIME_LEVELS, far=FAR)


def unseen(
    data: Data, folds: np.ndarray, start: np.ndarray, *, iterations: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of predictions of each row by a fit that has not seen its fold: without and with
    corrections.
    """
    plain, corrected = np.zeros(len(folds)), np.zeros(len(folds))
    for fold in np.unique(folds):
        out = np.flatnonzero(folds == fold)
        _, corrections = fit(data, folds != fold, start, iterations)
        plain[out] = data.tables.predict(out)
        corrected[out] = plain[out] + [corrections.logarithm(data.names[row]) for row in out]
    return plain, corrected


def report(title: str, data: Data, predicted: np.ndarray) -> None:
    told = data.told
    rows, measured = [data.rows[row] for row in told], data.measured[told]
    order = metrics.tau(rows, predicted[told], measured)
    print(f"{title:34} {metrics.line(np.exp(predicted[told]), np.exp(measured))}  tau {order:.2f}")


def by_row(data: Data, start: np.ndarray, seeds: int) -> np.ndarray:
    """Prints how rows fare that a fit has not seen; the mean error of each."""
    told = data.told
    rows, measured = [data.rows[row] for row in told], data.measured[told]
    drawn = [np.random.RandomState(seed).randint(0, FOLDS, len(data.rows)) for seed in range(seeds)]
    found = [unseen(data, folds, start) for folds in drawn]
    for title, which in (("model, by row", 0), ("model and corrections, by row", 1)):
        own = [one[which][told] for one in found]
        mean = np.mean(
            [metrics.summary(metrics.errors(np.exp(one), np.exp(measured))) for one in own], axis=0
        )
        order = metrics.tau_of_one_fit(rows, own, [folds[told] for folds in drawn], measured)
        mixed = np.mean([metrics.tau(rows, one, measured) for one in own])
        print(f"{title:34} {metrics.text(mean)}  tau {order:.2f} (of all fits together {mixed:.2f})")
    error: np.ndarray = np.mean([one[1] for one in found], axis=0) - data.measured
    metrics.by_source(data.sources[told], error[told])
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--by-source", action="store_true")
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument(
        "--afresh", action="store_true", help="begin at the priors, not at the coefficients as they are"
    )
    given = parser.parse_args()
    data = read(given.rows)
    everything = np.ones(len(data.rows))
    baseline = metrics.constant_utilisation(data.readings, data.measured)
    report("constant utilisation, in sample", data, baseline)
    begun = None if given.afresh else data.begun.logarithms(time_fit.parameters(data.tables.workloads))
    theta, corrections = fit(data, everything, begun, given.iterations)
    every = np.arange(len(data.rows))
    plain = data.tables.predict(every)
    final = plain + [corrections.logarithm(names) for names in data.names]
    report("model, in sample", data, plain)
    report("model and corrections, in sample", data, final)
    told = data.told
    known, again = metrics.most_tau([data.rows[row] for row in told], data.measured[told], NOISE)
    print(f"most tau: {known:.2f} knowing each configuration's mean, {again:.2f} measured again")
    if given.write:
        Path(fitted.__file__).write_text(time_fit.source_text(data.tables))
        groups.TIME_FILE.write_text(groups.dump(corrections))
    if given.seeds:
        error = by_row(data, theta, given.seeds)
        for row in np.argsort(-np.abs(error))[: given.worst]:
            print(
                f"{error[row]:+.2f} {math.exp(data.measured[row]):9.3f} s", metrics.describe(data.rows[row])
            )
    if given.by_source:
        sources = np.unique(data.sources, return_inverse=True)[1]
        baseline = metrics.constant_utilisation(data.readings, data.measured, sources)
        report("constant utilisation, by source", data, baseline)
        plain, corrected = unseen(data, sources, theta)
        report("model, by source", data, plain)
        report("model and corrections, by source", data, corrected)
        metrics.by_source(data.sources[told], (corrected - data.measured)[told])


if __name__ == "__main__":
    main()
