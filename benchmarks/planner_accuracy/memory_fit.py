"""Corrections of predicted memory from measurements, and how well they do on rows and sources that they have
not seen.

    python -m benchmarks.planner_accuracy.memory_fit --rows FILE.csv            # in sample, by row, by source
    python -m benchmarks.planner_accuracy.memory_fit --rows FILE.csv --write    # corrections_memory.json

Pure standard library. The coefficients of frameworks are in `planner.cost.frameworks`; what is learned here
are shares of what remains: of a source of tests, of a test, of a test on one kind of accelerator and image. "By
source" leaves only those shares out; what a source is worth whose framework nobody measured is told as "unknown".
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.planner_accuracy import groups
from benchmarks.planner_accuracy.predict import chosen, peak
from benchmarks.planner_accuracy.rows import Reading, Row, RowError, read_row
from trainingrun.planner.cost.calibration import NONE, Corrections, Observation, learn

FOLDS = 5
SEEDS = 5
NOISE = 0.015  # tests in bytes: the same one measured again
LOW_QUALITY = 0.3  # rows with assumed fields teach less


@dataclass(frozen=True)
class Point:
    row: Row
    names: dict[str, str]
    predicted: float  # without corrections
    unknown: float  # as if nobody had measured its framework: without the framework's coefficients
    measured: float
    weight: float

    @property
    def observation(self) -> Observation:
        return Observation(self.names, math.log(self.measured / self.predicted), self.weight)


def points(file: Path) -> list[Point]:
    found = []
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if not row["peak_mem_gb"]:
                continue
            try:
                reading = read_row(row)
            except RowError:
                continue
            weight = 1.0 if reading.complete else LOW_QUALITY
            predicted = peak(reading, chosen(reading)[1])
            unknown = peak(reading, chosen(stranger(reading))[1])
            names = groups.names(row, reading)
            found.append(Point(row, names, predicted, unknown, float(row["peak_mem_gb"]), weight))
    return found


def stranger(reading: Reading) -> Reading:
    """The same row, of a framework of which only the kind of attention and loss are known."""
    work = reading.workload
    bare = replace(work.framework, coefficients={})
    return replace(
        reading, workload=replace(work, framework=bare), source=replace(reading.source, else_spends="")
    )


def taught(known: Sequence[Point]) -> Corrections:
    """Tests teach what each of them adds. Tables in whole gigabytes teach nothing: their means, tried, did not help
    on rows that they had not seen.
    """
    exact = [point.observation for point in known if point.names["test"]]
    return learn(exact, groups.MEMORY_LEVELS, noise=NOISE) if exact else NONE


def error(point: Point, corrections: Corrections | None) -> float:
    factor = 1.0 if corrections is None else corrections.factor(point.names)
    return abs(point.predicted * factor / point.measured - 1)


def unseen(every: Sequence[Point], fold: Callable[[int], object]) -> list[float]:
    """Errors of each point by corrections that have not seen its fold."""
    folds = [fold(index) for index in range(len(every))]
    errors = [0.0] * len(every)
    for own in set(folds):
        corrections = taught([point for point, other in zip(every, folds, strict=True) if other != own])
        for index, point in enumerate(every):
            if folds[index] == own:
                errors[index] = error(point, corrections)
    return errors


def by_row(every: Sequence[Point], seeds: int = SEEDS) -> list[float]:
    """Mean over seeds of each point's error."""
    totals = [0.0] * len(every)
    for seed in range(seeds):
        draw = random.Random(seed)
        folds = [draw.randrange(FOLDS) for _ in every]
        for index, one in enumerate(unseen(every, folds.__getitem__)):
            totals[index] += one / seeds
    return totals


def by_test(every: Sequence[Point]) -> list[float]:
    """Tests of Megatron-LM run on several accelerators: here all of a test's rows are left out together."""
    return unseen(every, lambda index: every[index].row["model"].removesuffix("_1node"))


def by_source(every: Sequence[Point]) -> list[float]:
    return unseen(every, lambda index: every[index].row["source"])


def _line(title: str, every: Sequence[Point], errors: Sequence[float]) -> None:
    modern = [
        value
        for point, value in zip(every, errors, strict=True)
        if point.names["framework"].startswith("megatron") and "20" not in point.names["framework"]
        if point.row["peak_mem_gb"] and point.names["framework"] == "megatron"
    ]
    good = [value for point, value in zip(every, errors, strict=True) if point.weight == 1.0]
    print(
        f"{title:28} {len(errors)} rows  MAPE {100 * fmean(errors):5.2f} %   "
        f"complete rows {100 * fmean(good):5.2f} %   "
        f"current Megatron ({len(modern)}) {100 * fmean(modern):5.2f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worst", type=int, default=0)
    given = parser.parse_args()
    every = points(given.rows)
    corrections = taught(every)
    rows, tests, sources = by_row(every), by_test(every), by_source(every)
    _line("model", every, [error(point, None) for point in every])
    _line("and corrections, in sample", every, [error(point, corrections) for point in every])
    _line("and corrections, by row", every, rows)
    _line("and corrections, by model", every, tests)
    _line("and corrections, by source", every, sources)
    strangers = [abs(point.unknown / point.measured - 1) for point in every]
    _line("as of an unknown framework", every, strangers)
    table: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for point, *others in zip(every, rows, sources, strangers, strict=True):
        table[point.row["source"]].append((error(point, None), *others))
    for source, errors in table.items():
        means = [100 * fmean(column) for column in zip(*errors, strict=True)]
        parts = zip(("model", "by row", "by source", "as unknown"), means, strict=True)
        shown = "  ".join(f"{title} {mean:6.2f}" for title, mean in parts)
        print(f"  {source[:44]:44} {len(errors):4}  {shown}")
    for value, point in sorted(zip(rows, every, strict=True), key=lambda pair: -pair[0])[: given.worst]:
        row = point.row
        cut = " ".join(
            f"{column}={row[column]}" for column in ("gpu", "tp", "pp", "dp", "micro_batch", "seq_len")
        )
        print(f"{100 * value:6.1f} % {point.measured:8.2f} {row['source'][:24]} {row['model'][:60]} {cut}")
    if given.write:
        groups.MEMORY_FILE.write_text(groups.dump(corrections))


if __name__ == "__main__":
    main()
