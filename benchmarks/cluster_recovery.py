"""How long training stands still after a fault on a real Kubernetes: ours beside torchrun elastic, in one run.

    make bench-recovery-cluster                              a table, and each bar beside what it really is
    make bench-recovery-cluster ARGS="--json PATH"           rows {system, fault, seconds: [...], steps_lost: [...]}
    make bench-recovery-cluster ARGS="--systems ours --tries 1 --faults 'pod deleted'"

The test cluster of three nodes; the same model and batch in two pods of two processes on both sides. The node of the
operator (or of torchrun's store) is never hit. Seconds run from the instant of the fault to the end of the next
optimizer step: of any size ("stepping"), and of full size. Each try of torchrun is capped at 120 s.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.cluster.session import cluster_lines
from tests.scenarios.cluster_line import ClusterLines

from benchmarks.cluster_faults import DELETED, FAULTS, OFF, PARTITIONED, PID_1, RANK, Recovery
from benchmarks.cluster_ours import our_run
from benchmarks.our_run import WORKLOAD
from benchmarks.rows import CAP_SECONDS, Rows, verdict
from benchmarks.torchrun_pods import torchrun_pods

OURS, TUNED, DEFAULTS = "ours", "torchrun tuned", "torchrun defaults"
SYSTEMS = (OURS, TUNED, DEFAULTS)
RANK_FAULTS = 10  # in one run, one after another
AS_FAST = 1.25  # what the tenth may take of the first, for noise
SIZES = {"stepping": "survivors", "full size": "full"}


def row_name(fault: str, size: str) -> str:
    return f"{fault}: {size}"


def note(rows: Rows, system: str, fault: str, found: Recovery) -> None:
    for size, field in SIZES.items():
        rows.add(system, row_name(fault, size), getattr(found, field), found.steps_lost)


def measure_ours(rows: Rows, lines: ClusterLines, faults: Sequence[str], tries: int) -> None:
    """Ten rank faults first; then the other faults in turn, so that each is met by pods that others have replaced."""
    with our_run(lines, new_folder(lines, OURS)) as run:
        for number in range(RANK_FAULTS if RANK in faults else 0):
            note(rows, OURS, RANK, run.suffer(RANK, number))
        for number in range(tries):
            for fault in (fault for fault in faults if fault != RANK):
                note(rows, OURS, fault, run.suffer(fault, number))


def measure_torchrun(rows: Rows, lines: ClusterLines, faults: Sequence[str], tries: int, system: str) -> None:
    """New pods for each round of faults, and after a fault from which these did not recover within the cap."""
    todo = [(number, fault) for number in range(tries) for fault in faults]
    cluster, operator = lines.cluster, lines.installation
    while todo:
        round_ = todo[0][0]
        folder = new_folder(lines, "torchrun")
        with torchrun_pods(cluster, operator.api, operator.node, WORKLOAD, system == TUNED, folder) as pods:
            while todo and todo[0][0] == round_:
                number, fault = todo.pop(0)
                found = pods.suffer(fault, number)
                note(rows, system, fault, found)
                if found.full is None:
                    break


def new_folder(lines: ClusterLines, name: str) -> Path:
    """One that the pods see, and may write to. Its name is good for a namespace too."""
    folder = lines.cluster.shared_dir / f"bench-{name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def bars(rows: Rows) -> list[str]:
    def p50(fault: str, size: str, system: str = OURS) -> float:
        return rows.p50(system, row_name(fault, size))

    found = []
    ranks = rows.seconds.get((OURS, row_name(RANK, "full size")), [])
    if ranks:
        took = p50(RANK, "full size")
        found.append(verdict(took <= 3, f"rank killed p50 <= 3 s: {took:.2f} s"))
        first, tenth = (float("inf") if value is None else value for value in (ranks[0], ranks[-1]))
        text = f"tenth rank fault of a run as fast as the first (+25 % is noise): {tenth:.2f} s, first {first:.2f} s"
        found.append(verdict(tenth <= min(first, CAP_SECONDS) * AS_FAST, text))
    for fault, size, limit in (
        (PID_1, "stepping", 5),
        (PID_1, "full size", 5),
        (DELETED, "stepping", 4),
        (DELETED, "full size", 10),
    ):
        if (OURS, row_name(fault, size)) in rows.seconds:
            took = p50(fault, size)
            found.append(verdict(took <= limit, f"{fault}, {size} p50 <= {limit} s: {took:.2f} s"))
    for fault in (PARTITIONED, OFF):
        if all((system, row_name(fault, "stepping")) in rows.seconds for system in (OURS, TUNED)):
            took = p50(fault, "stepping")
            theirs = min(p50(fault, "stepping", TUNED), CAP_SECONDS)
            text = f"{fault}, stepping <= 1/3 of torchrun tuned: {took:.2f} s of {theirs:.2f} s"
            found.append(verdict(took <= theirs / 3, text))
    return found


def report(rows: Rows) -> None:
    print(rows.table([row_name(fault, size) for fault in FAULTS for size in SIZES]))
    print(
        "\nwarm on our side: the fork server of a pod that lives (torch and transformers imported); a new pod imports "
        f"everything anew. torchrun: nothing; it saves every {WORKLOAD.checkpoint_every} steps."
    )
    print("\n".join(bars(rows)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument(
        "--tries", type=int, default=5, help="of ours, each fault (default 5; rank killed: 10)"
    )
    parser.add_argument("--torchrun-tries", type=int, default=3, help="of torchrun, each fault (default 3)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is removed then too
    rows = Rows()
    try:
        with cluster_lines() as found:
            lines = replace(found, workers=found.cluster.nodes)
            for system in args.systems:
                if system == OURS:
                    measure_ours(rows, lines, args.faults, args.tries)
                else:
                    measure_torchrun(rows, lines, args.faults, args.torchrun_tries, system)
    finally:  # what was measured counts, whatever happened then
        report(rows)
        if args.json:
            args.json.write_text(json.dumps(rows.as_json(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
