"""Where the fitted memory coefficients of older frameworks come from: the best of a small grid, for each source, and
how well a choice does on rows that it has not seen.

    python -m benchmarks.planner_accuracy.memory_coefficients --rows FILE.csv

Prints the best values; `planner.cost.frameworks` holds them. Pure standard library.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.planner_accuracy.predict import chosen, peak
from benchmarks.planner_accuracy.rows import Reading, RowError, read_row

FOLDS = 5
SEEDS = 5
FAR = 0.25  # an error beyond it counts as if it were there

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "BLOOM": {
        "memory_weight_extra": (0, 0.3, 0.6, 0.9),
        "memory_optimizer_extra": (4, 5, 6, 7),
        "memory_slack_activations": (0.2, 0.3, 0.4, 0.5),
        "memory_context_gib": (3.5, 4.5, 5.5),
    },
    "tr3m": {
        "memory_weight_extra": (4.5, 5.5, 6.5),
        "memory_optimizer_extra": (0, 2, 4),
        "memory_logit": (6, 7.5, 9),
        "memory_context_gib": (0.8, 1.6, 2.4),
    },
    "Sailor": {
        "memory_weight_extra": (10, 14, 18),
        "memory_activation_factor": (0.9, 0.94, 0.98),
        "memory_logit": (18, 21, 23.6, 26),
        "memory_fixed_gib": (3.0, 3.4, 3.8),
    },
    "litgpt": {
        "memory_norm_copies": (4, 5, 6, 7),
        "memory_quantised": (0.2, 0.25, 0.3, 0.35, 0.4, 0.45),
    },
}


def readings(file: Path, source: str) -> list[tuple[Reading, float]]:
    found = []
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if source in row["source"] and row["peak_mem_gb"]:
                try:
                    reading = read_row(row)
                except RowError:
                    continue
                found.append(
                    (
                        replace(reading, source=replace(reading.source, else_spends="")),
                        float(row["peak_mem_gb"]),
                    )
                )
    return found


def error(reading: Reading, measured: float, given: dict[str, float]) -> float:
    work = reading.workload
    kind = replace(work.framework, coefficients={**work.framework.coefficients, **given})
    changed = replace(reading, workload=replace(work, framework=kind))
    return abs(peak(changed, chosen(changed)[1]) / measured - 1)


def best(table: dict[tuple[float, ...], list[float]], rows: Sequence[int]) -> tuple[float, ...]:
    return min(table, key=lambda values: sum(min(FAR, table[values][row]) for row in rows))


def unseen(table: dict[tuple[float, ...], list[float]], count: int) -> float:
    """Mean error of rows by values that were chosen without their fold."""
    means = []
    for seed in range(SEEDS):
        draw = random.Random(seed)
        folds = [draw.randrange(FOLDS) for _ in range(count)]
        errors = []
        for fold in range(FOLDS):
            values = best(table, [row for row in range(count) if folds[row] != fold])
            errors += [table[values][row] for row in range(count) if folds[row] == fold]
        means.append(fmean(errors))
    return fmean(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, required=True)
    given = parser.parse_args()
    for source, grid in GRIDS.items():
        known = readings(given.rows, source)
        table = {
            values: [
                error(reading, measured, dict(zip(grid, values, strict=True))) for reading, measured in known
            ]
            for values in itertools.product(*grid.values())
        }
        values = best(table, range(len(known)))
        shown = ", ".join(f"{name} {value:g}" for name, value in zip(grid, values, strict=True))
        print(
            f"{source:8} {len(known):3} rows  in sample {100 * fmean(table[values]):5.2f} %  "
            f"by row {100 * unseen(table, len(known)):5.2f} %  {shown}"
        )


if __name__ == "__main__":
    main()
