"""Tokens a second beside transformers' Trainer and a plain loop; ends with 1 when a bar is missed.

    python -m benchmarks.throughput [--case NAME] [--processes N] [--turns N] [--json FILE] [--page]

With --page the table in docs/benchmarks.md is written anew, from all cases.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.page import write_section
from benchmarks.throughput import contest, corpus
from benchmarks.throughput.cases import CASES, OURS, Case
from benchmarks.throughput.recipe import CORES
from benchmarks.throughput.rows import Row, Share, page, rows_of, told, told_share
from benchmarks.throughput.split import LOG, PARTS
from benchmarks.throughput.timing import rates
from trainer.policy import SnapshotPolicy

HELD = (1, 2)  # processes for which bars count; more than there are cores say little
SHARE_CASE, SHARE_BAR = "100M", 0.03
SHARE_STEPS = 6
MEMORY = "/dev/shm"  # snapshots belong there; nothing else is large


def measure(case: Case, processes: int, folder: Path) -> list[Row]:
    documents = folder / "corpus"
    corpus.write_corpus(case, documents)
    contestants = {one.name: one for one in contest.run(case, processes, documents, folder)}
    ours = contestants.pop(OURS)
    found = {name: rates(one.steps(), one.turns, even=not case.padded) for name, one in contestants.items()}
    stall = snapshot_stall(ours)
    return rows_of(
        case,
        processes,
        layout_of(ours),
        rates(ours.steps(), ours.turns, even=not case.padded, stall_seconds=stall),
        found,
        held=processes in HELD,
    )


def snapshot_stall(ours: contest.Contestant) -> float:
    """Seconds of a step that memory snapshots cost on average, at the interval that the trainer's policy comes to."""
    lines = ours.lines()
    policy = SnapshotPolicy(None)
    taken = [line["snapshotSeconds"] for line in lines if "snapshotSeconds" in line]
    for line in lines:
        if "seconds" in line:
            policy.stepped(line["seconds"])
        if "snapshotSeconds" in line:
            policy.cost(line["snapshotSeconds"])
    return median(taken[-5:]) / policy.interval_steps() if taken else 0.0


def layout_of(ours: contest.Contestant) -> str:
    found = re.search(r"^layout: (.*)$", ours.output(), re.MULTILINE)
    shown = found[1] if found else ""
    return re.sub(r"(replicate|shard|tensor|pipeline) 1,? ?", "", shown).strip() or "one process"


def measure_share(case: Case, processes: int, folder: Path) -> Share:
    """Alone on the machine, without the others."""
    documents = folder / "corpus"
    corpus.write_corpus(case, documents)
    with contest.Contestant(OURS, case, processes, documents, folder / "ours", split=True) as ours:
        ours.warm_up()
        ours.take_turn(SHARE_STEPS)
        (turn,) = ours.turns
        lines = [json.loads(text) for text in (ours.folder / LOG).read_text().splitlines()]
        inside = [line for line in lines if turn.start <= line["at"] <= turn.end]
        stall = snapshot_stall(ours)
        taken = {line["step"]: line["snapshotSeconds"] for line in ours.lines() if "snapshotSeconds" in line}
    pairs = [
        (later["at"] - earlier["at"] - taken.get(earlier["step"], 0.0), later)
        for earlier, later in pairwise(inside)
    ]
    return Share(
        case=case.name,
        processes=processes,
        step_seconds=median(seconds for seconds, _ in pairs) + stall,
        parts={part: median(line[part] for _, line in pairs) for part in PARTS},
        bar=SHARE_BAR if processes == 1 else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--processes", action="append", type=int, help="1 and 2 unless given")
    parser.add_argument("--turns", type=int, help="of each contestant, instead of the case's own number")
    parser.add_argument("--share", action="store_true", help="only where a step of ours goes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.case or case.name in options.case]
    if options.turns:
        chosen = [replace(case, turns=options.turns) for case in chosen]
    rows: list[Row] = []
    shares: list[Share] = []
    for case in chosen:
        for processes in options.processes or HELD:
            if not options.share:
                with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                    rows += measure(case, processes, Path(folder))
                print("\n".join(told(row) for row in rows[-len(case.contestants) + 1 :]), flush=True)
            if case.name == SHARE_CASE and (options.share or not options.case):
                with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                    shares.append(measure_share(case, processes, Path(folder)))
                print(told_share(shares[-1]), flush=True)
    if options.json:
        found = {"rows": [row.as_json() for row in rows], "shares": [share.as_json() for share in shares]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.page:
        write_section("throughput", page(rows, shares, CORES))
    return 0 if all(one.met for one in (*rows, *shares)) else 1


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)  # folders in memory are removed
    try:
        raise SystemExit(main())
    except contest.ContestFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        raise SystemExit(2) from None
