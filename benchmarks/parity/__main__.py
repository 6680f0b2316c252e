"""Runs the parity matrix and writes docs/parity.md; ends with 1 when a row is beyond its limits.

    python -m benchmarks.parity [--only TEXT] [--json FILE]

With --only, rows whose model, layout or schedule contains the text are run, and the page is left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from tests.trainer.comparing import compare

from benchmarks.parity.matrix import STEPS, Row, rows
from benchmarks.parity.page import Measured, page

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"


def measure(row: Row) -> Measured:
    started = time.monotonic()
    found = compare(row.kind, STEPS, **dict(row.axes))
    measured = Measured(row, **asdict(found))
    shown = f"loss {found.loss:.1e}, weights {found.parameters:.1e}: {measured.problem or 'ok'}"
    seconds = time.monotonic() - started
    print(f"{row.model}: {row.layout} {row.schedule}: {shown} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="run the rows that contain this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON too")
    options = parser.parse_args()
    chosen = [
        row for row in rows() if options.only in f"{row.model} {row.layout} {row.schedule} {row.precision}"
    ]
    if not chosen:
        print(f"error: --only {options.only}: no row contains it", file=sys.stderr)
        return 2
    measured = [measure(row) for row in chosen]
    if options.json:
        shown = [{**asdict(one), "problem": one.problem} for one in measured]
        options.json.write_text(json.dumps(shown, indent=1) + "\n")
    text = page(measured, {"torch": torch.__version__, "transformers": transformers.__version__})
    if options.only:
        print(text)
    else:
        PAGE.write_text(text)
    return 1 if any(one.problem for one in measured) else 0


if __name__ == "__main__":
    raise SystemExit(main())
