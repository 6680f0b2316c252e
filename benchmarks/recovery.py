"""How long training stands still after a fault: ours beside torchrun elastic, in one run on one machine.

    make bench-recovery                      a table
    make bench-recovery ARGS="--json PATH"   rows {system, fault, seconds: [...], steps_lost: [...]}

The same model and batch on two local nodes of two processes; both sides load their own checkpoint. Seconds run from the
SIGKILL (for "node back" from the start of the node's first process) to the end of the next optimizer step of a world of
the size that counts. What is warm: ours forks ranks from a server that has imported torch and transformers; a node that
comes back imports everything anew, on both sides. torchrun starts new interpreters for every recovery.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scenarios.line import Moment
from tests.scenarios.local_line import LocalLine

from benchmarks.our_run import WORKLOAD, Metrics, bench_manifest
from benchmarks.rows import CAP_SECONDS, Rows, verdict
from benchmarks.torchrun_elastic import try_once
from trainingrun.cluster.local.settings import LocalSettings

RANK, SURVIVORS, BACK = "rank killed", "node killed, survivors stepping", "node back, full size"
FAULTS = (RANK, SURVIVORS, BACK)


def measure(
    line: LocalLine, fault: Callable[[], None], members: int, what: str
) -> tuple[float | None, int | None]:
    """Seconds from the fault to the first step of the next epoch with so many members, and the steps it cost."""
    metrics, before = Metrics(line), line.moment().epoch
    started = time.time()
    fault()

    def stepped(now: Moment) -> tuple[float, int] | None:
        for epoch in now.epochs:
            if epoch.epoch > before and len(epoch.members) == members:
                row = metrics.first_step_of(epoch.epoch)
                if row is not None:
                    lost = metrics.last_step_of(epoch.epoch - 1) - epoch.restore.step
                    return row["at"] - started, max(0, lost)
        return None

    try:
        return line.wait_for(stepped, what, CAP_SECONDS)
    except AssertionError:
        return None, None


def ours(rows: Rows, tries: int) -> dict[str, Any]:
    """All tries in one run. Returns what is said beside the table."""
    dice = random.Random(1)
    folder = Path(tempfile.mkdtemp(prefix="trainingrun-bench-"))
    with LocalLine(nodes=2, settings=LocalSettings(), state=folder / "line") as line:
        line.apply(bench_manifest(folder))
        line.wait_for_step(20)
        for number in range(tries):
            settle(line)
            slot, rank = number % 2, dice.randrange(2)
            rows.add(
                "ours",
                RANK,
                *measure(line, lambda slot=slot, rank=rank: line.kill_rank(slot, rank), 2, "all stepping"),
            )
        for _ in range(tries):
            settle(line)
            node = line.node_of(dice.randrange(2))
            rows.add(
                "ours",
                SURVIVORS,
                *measure(line, lambda node=node: line.kill_node(node), 1, "survivors stepping"),
            )
            time.sleep(1.0)
            rows.add(
                "ours",
                BACK,
                *measure(line, lambda node=node: line.start_node(node), 2, "both nodes stepping"),
            )
        # What a newcomer's imports cost where they happen: beside survivors that train.
        line.kill_node(line.node_of(0))
        line.wait_for(lambda now: now.members == 1, "survivors stepping", CAP_SECONDS)
        busy_imports = import_seconds(os.environ["TRAININGRUN_TRAINER_PYTHON"])
        progress = line.wait_for(lambda now: now.view and now.view.progress, "progress")
        snapshots = [row["step"] for row in Metrics(line).rows() if row.get("snapshotSeconds") is not None]
        gaps = [later - earlier for earlier, later in itertools.pairwise(snapshots) if later > earlier]
        return {
            "import_seconds": busy_imports,
            "snapshot_every_steps": statistics.median(gaps) if gaps else None,
            "snapshot_stall_permille": progress.summary.snapshot_stall_permille,
            "step_seconds": progress.summary.step_seconds,
        }


def settle(line: LocalLine) -> None:
    """A fault hits a run that trains steadily: forty steps, or three seconds, into its epoch."""
    at = line.wait_for(lambda now: now.step, "a step")
    line.wait_for_step(at + 40, CAP_SECONDS)


def import_seconds(python: str) -> float:
    """What a fresh interpreter pays before it can train (median of 3)."""
    times = []
    for _ in range(3):
        started = time.time()
        subprocess.run([python, "-c", "import trainer.rank"], check=True)
        times.append(time.time() - started)
    return statistics.median(times)


def bars(rows: Rows, said: dict[str, Any]) -> list[str]:
    """Each bar beside what it really is."""

    tuned = rows.p50("torchrun tuned", SURVIVORS)
    every = said["snapshot_every_steps"] or 0
    checks = [
        (f"rank killed p50 <= 2 s: {rows.p50('ours', RANK):.2f} s", rows.p50("ours", RANK) <= 2),
        (
            f"steps lost <= snapshot interval ({every:g}): {rows.most_lost('ours', RANK)}",
            rows.most_lost("ours", RANK) <= every,
        ),
        (
            f"snapshot stall <= 20 permille: {said['snapshot_stall_permille']}",
            said["snapshot_stall_permille"] <= 20,
        ),
        (
            f"survivors stepping <= 1/3 of torchrun tuned: {rows.p50('ours', SURVIVORS):.2f} s of {tuned:.2f} s",
            rows.p50("ours", SURVIVORS) <= tuned / 3,
        ),
        (
            f"node back, full size <= 5 s + import {said['import_seconds']:.1f} s: {rows.p50('ours', BACK):.2f} s",
            rows.p50("ours", BACK) <= 5 + said["import_seconds"],
        ),
    ]
    return [verdict(met, text) for text, met in checks]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--tries", type=int, default=20, help="of ours, each fault (default 20)")
    parser.add_argument("--torchrun-default-tries", type=int, default=3)
    parser.add_argument("--torchrun-tuned-tries", type=int, default=5)
    args = parser.parse_args()
    python = os.environ["TRAININGRUN_TRAINER_PYTHON"]
    rows = Rows()
    imports = import_seconds(python)
    print(f"import time of a fresh interpreter: {imports:.2f} s", file=sys.stderr)
    said = ours(rows, args.tries)
    for system, tuned, tries in (
        ("torchrun tuned", True, args.torchrun_tuned_tries),
        ("torchrun defaults", False, args.torchrun_default_tries),
    ):
        for _ in range(tries):
            for outcome in try_once(python, WORKLOAD, tuned, CAP_SECONDS):
                rows.add(system, outcome.fault, outcome.seconds, outcome.steps_lost)
    print(rows.table(FAULTS))
    print(
        f"ours: a snapshot every {said['snapshot_every_steps']} steps, stall "
        f"{said['snapshot_stall_permille'] / 10:.1f} % of the step time ({said['step_seconds'] * 1000:.0f} ms); "
        f"torchrun saves every {WORKLOAD.checkpoint_every} steps; importing the training code takes a fresh "
        f"interpreter {imports:.1f} s on an idle machine, {said['import_seconds']:.1f} s beside survivors that train"
    )
    print("warm on our side: the fork server (torch and transformers imported). On torchrun's side: nothing.")
    print("\n".join(bars(rows, said)))
    if args.json:
        args.json.write_text(json.dumps(rows.as_json(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
