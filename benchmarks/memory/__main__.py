"""Memory of real ranks beside the planner's prediction, part by part as live tensors and whole as resident memory; ends
with 1 when a row is beyond its bar.

python -m benchmarks.memory [--only TEXT] [--parts | --peaks] [--json FILE] [--page]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import lone_node
from benchmarks.memory import part_rows
from benchmarks.memory.cases import CASES, Case
from benchmarks.memory.part_cases import PART_CASES
from benchmarks.memory.rows import Predicted, Real, Row, page, told
from benchmarks.page import write_section
from benchmarks.rows import verdict
from benchmarks.throughput.corpus import TOKENIZER, write_made
from trainingrun.api.load import parse, resolve
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.memory import STATE_BUFFERS
from trainingrun.planner.search import plan
from trainingrun.planner.types import MemoryBill, PlannedRung

MEMORY = "/dev/shm"
SNAPSHOTS = 2  # of the buffers of the state that the planner counts


def planned(case: Case, folder: Path) -> tuple[dict[str, object], PlannedRung]:
    corpus = folder / "corpus"
    spec = resolve(parse(case.manifest(corpus, corpus / TOKENIZER, folder), None), None)
    (rung,) = plan(*planner_inputs(spec)).rungs
    return spec, rung


def predicted(bill: MemoryBill) -> Predicted:
    snapshots = bill.snapshots * SNAPSHOTS // STATE_BUFFERS
    return Predicted(bill.reserved, snapshots, bill.total - bill.reserved - snapshots)


def measure(case: Case) -> Row:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        write_made(
            folder / "corpus",
            case.model["vocab_size"],
            tokens=400_000,
            median=2000,
            spread=1.0,
            longest=20_000,
        )
        _, rung = planned(case, folder)
        command = [sys.executable, "-m", "benchmarks.memory", "--run", str(CASES.index(case)), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("memory-*.json"))]
        if done.returncode or len(found) != rung.rung.world:
            logs = "".join(path.read_text() for path in sorted(folder.glob("epoch-*.log")))
            raise SystemExit(f"error: {case}: the ranks failed:\n{done.stderr[-2000:]}\n{logs[-4000:]}")
    ranks = [
        Real(one["baseBytes"], one["peakBytes"], one["snapshotBytes"], one["libraryBytes"]) for one in found
    ]
    return Row(
        case=case.name,
        precision=case.precision,
        activations=case.activations,
        layout=_layout(rung),
        real=max(ranks, key=lambda one: one.peak),
        predicted=predicted(rung.memory),
    )


def _layout(planned: PlannedRung) -> str:
    rung = planned.rung
    axes = [
        f"{axis} {getattr(rung, axis)}"
        for axis in ("replicate", "shard", "tensor", "pipeline")
        if getattr(rung, axis) > 1
    ]
    return f"{' x '.join(axes) or 'one process'}, {rung.micro_batch} x {rung.accumulation}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that contain this")
    parser.add_argument("--parts", action="store_true", help="live tensors only")
    parser.add_argument("--peaks", action="store_true", help="resident memory only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--run", nargs=2, metavar=("NUMBER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        number, where = options.run
        spec, rung = planned(CASES[int(number)], Path(where))
        return lone_node.run(spec, rung.rung, Path(where), "benchmarks.memory.measured")
    parts = [] if options.peaks else _parts(options.only)
    rows = [] if options.parts else _peaks(options.only)
    if options.json:
        options.json.write_text(json.dumps([row.as_json() for row in (*parts, *rows)], indent=1) + "\n")
    if options.page:
        if options.only:
            raise SystemExit("error: a table has all of its rows. Fix: --page without --only")
        if parts:
            write_section("memory", part_rows.page(parts))
        if rows:
            write_section("memory-peaks", page(rows))
    return 0 if all(row.met for row in (*parts, *rows)) else 1


def _parts(only: str) -> list[part_rows.PartRow]:
    rows = []
    for case in PART_CASES:
        if only in f"{case.name} {case.precision} {case.optimizer} {case.recompute} {case.axes}":
            for row in part_rows.rows_of(case):
                rows.append(row)
                print(verdict(row.met, part_rows.told(row)), flush=True)
    return rows


def _peaks(only: str) -> list[Row]:
    rows = []
    for case in CASES:
        if only in f"{case.name} {case.precision} {case.activations} {case.axes} {case.processes}":
            rows.append(measure(case))
            print(verdict(rows[-1].met, told(rows[-1])), flush=True)
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
