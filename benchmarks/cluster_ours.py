"""Recovery of our run on a real cluster: every fault at a known instant, and when the ranks stepped again.

Seconds run from the instant of the fault to the time that a rank wrote beside its optimizer step, both on this
machine's clock, which all nodes share. One run of two pods on three nodes suffers all faults one after another, so that
a lost node is replaced before it is back. Called by benchmarks.cluster_recovery.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.scenarios import lines as chosen_lines
from tests.scenarios.cluster_line import ClusterLine, ClusterLines
from tests.scenarios.line import Moment

from benchmarks.cluster_faults import (
    DELETED,
    OFF,
    PARTITIONED,
    PID_1,
    RANK,
    Hit,
    Recovery,
    delete_pod,
    kill,
    kill_first_process,
    lose_node,
    time_of,
)
from benchmarks.our_run import Metrics, bench_manifest
from benchmarks.rows import CAP_SECONDS
from trainingrun.ports import Pod
from trainingrun.protocol.records import Epoch

NODES = 2  # of the full size
LOOK_SECONDS = 0.4  # times come from the logs: looking seldom costs no accuracy, and disturbs less
SETTLED_STEPS = 40
QUIET_SECONDS = 180.0


@contextmanager
def our_run(lines: ClusterLines, folder: Path) -> Iterator[OurRun]:
    """The run, training, in a namespace of its own. `folder`: an existing one that the pods see."""
    chosen_lines.choose(lines)
    before = os.umask(0)  # what is written here must be writable for the user of the pods
    line = ClusterLine(lines, lines.workers, folder / "line")
    line.look_seconds = LOOK_SECONDS
    try:
        with line:
            line.apply(bench_manifest(folder))
            line.wait_for_step(20)
            yield OurRun(line)
    finally:
        os.umask(before)


class OurRun:
    def __init__(self, line: ClusterLine) -> None:
        self._line = line
        self._metrics = Metrics(line)

    def suffer(self, fault: str, number: int) -> Recovery:
        """The `number`th fault of that kind, on a run that has trained steadily for a while."""
        self._settle()
        before = self._line.moment().epoch
        at = time_of(self._aim(fault, number))
        found = Recovery(None, None, None)

        def whole(now: Moment) -> bool:
            nonlocal found
            found = self._recovery(now.epochs, before, at)
            return found.full is not None

        try:
            self._line.wait_for(whole, f"full size again after: {fault}", CAP_SECONDS)
        except AssertionError as error:
            print(error, file=sys.stderr)
        return found

    def snapshot_every(self) -> int:
        """Steps between two memory snapshots, in the newest epoch that took two; 0: none did."""
        steps = [row["step"] for row in self._metrics.rows() if row.get("snapshotSeconds") is not None]
        return max(steps[-1] - steps[-2], 0) if len(steps) > 1 else 0

    def _settle(self) -> None:
        """Every fault taken back, two pods and no other, and forty steps of an epoch of full size."""
        self._line.cluster.heal_all()

        def whole(now: Moment) -> int:
            tidy = len(now.pods) == NODES and not any(pod.terminating for pod in now.pods)
            return now.step if tidy and now.members == NODES else 0

        at = self._line.wait_for(whole, "two pods, both members", QUIET_SECONDS)
        self._line.wait_for_step(at + SETTLED_STEPS, CAP_SECONDS)

    def _recovery(self, epochs: Sequence[Epoch], before: int, at: float) -> Recovery:
        """As far as the ranks' logs tell by now."""
        later = [epoch for epoch in epochs if epoch.epoch > before]
        steps = _by_epoch(self._metrics.rows()) if later else {}
        survivors = full = None
        lost, position = 0, max((row["step"] for row in steps.get(before, ())), default=0)
        for epoch in later:
            rows = steps.get(epoch.epoch, [])
            lost += max(0, position - epoch.restore.step)
            position = max((row["step"] for row in rows), default=epoch.restore.step)
            if rows:
                seconds = min(row["at"] for row in rows) - at
                survivors = seconds if survivors is None else survivors
                if len(epoch.members) == NODES:
                    full = seconds
                    break
        return Recovery(survivors, full, None if survivors is None else lost)

    def _aim(self, fault: str, number: int) -> Hit:
        line, slot = self._line, number % NODES
        match fault:
            case _ if fault == RANK:
                ranks = line.ranks(slot)
                return kill(ranks[number // NODES % len(ranks)].pid)
            case _ if fault == PID_1:  # of a pod that was not hit before, so that no back-off is measured
                return kill_first_process(line.cluster, line.namespace, self._pods(slot)[0].name)
            case _ if fault == DELETED:
                return delete_pod(line.cluster, line.namespace, self._pods(slot)[-1].name)
            case _ if fault in (PARTITIONED, OFF):
                node = next(pod.node for pod in self._pods(slot) if pod.node != line.operator.node)
                return lose_node(line.cluster, node, power=fault == OFF)
        raise ValueError(f"{fault!r} is no fault")

    def _pods(self, first: int) -> list[Pod]:
        """Those with the fewest restarts first; of two that are equal, the one with slot `first`."""
        pods = [self._line.pod_of(slot) for slot in range(NODES)]
        return sorted(pods, key=lambda pod: (pod.restarts, pod.slot != first))


def _by_epoch(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if "at" in row:
            found.setdefault(row["epoch"], []).append(row)
    return found
