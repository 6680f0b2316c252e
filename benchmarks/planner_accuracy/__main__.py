"""Predicts memory, time and rates of published configurations.

    python -m benchmarks.planner_accuracy --rows FILE.csv --out predictions.csv [--score]

Reads what was configured, never what came out: outcome columns may be empty. --score compares with them where
they are given. How the corrections do on rows and sources they have not seen:
benchmarks.planner_accuracy.memory_fit and .fit.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.planner_accuracy.predict import COLUMNS, predict
from benchmarks.planner_accuracy.rows import OUTCOMES, Row, RowError, read_row
from benchmarks.planner_accuracy.score import Scored, report


def complete(row: Row) -> bool:
    """Whether the row gives all that its reading needs."""
    try:
        return read_row(row).complete
    except RowError:
        return False


def _cells(row: Mapping[str | None, str | list[str] | None]) -> Row:
    """Cells beyond the header are dropped; cells that a line does not have are empty."""
    return {key: text if isinstance(text, str) else "" for key, text in row.items() if key is not None}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_accuracy", description=__doc__)
    parser.add_argument(
        "--rows", type=Path, required=True, help="a table with the columns of the measurements"
    )
    parser.add_argument("--out", type=Path, help="where to write the predictions")
    parser.add_argument("--score", action="store_true", help="compare with the outcomes that the table gives")
    parser.add_argument("--plain", action="store_true", help="without corrections learned from measurements")
    given = parser.parse_args()
    try:
        with given.rows.open(newline="", encoding="utf-8-sig") as stream:
            rows: list[Row] = [_cells(row) for row in csv.DictReader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no table in UTF-8 ({error})"
        print(f"--rows {given.rows}: {reason}; give a table of configurations", file=sys.stderr)
        return 2
    if not rows or "source" not in rows[0] or "model" not in rows[0]:
        print(
            f"--rows {given.rows}: no columns `source` and `model`; give a table of configurations",
            file=sys.stderr,
        )
        return 2
    if given.out and (given.out.is_dir() or not given.out.parent.is_dir()):
        print(
            f"--out {given.out}: no file can be there; give a path in a folder that exists", file=sys.stderr
        )
        return 2
    blanked = [{key: value for key, value in row.items() if key not in OUTCOMES} for row in rows]
    predictions = [predict(row, corrected=not given.plain) for row in blanked]
    if given.out:
        with given.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ("source", "source_ref", "model", *COLUMNS))
            writer.writeheader()
            for row, prediction in zip(rows, predictions, strict=True):
                known = {key: row.get(key) or "" for key in ("source", "source_ref", "model")}
                writer.writerow({**known, **prediction.columns()})
    if given.score:
        print(report([Scored(*pair) for pair in zip(rows, predictions, strict=True)], complete))
    return 0


if __name__ == "__main__":
    sys.exit(main())
