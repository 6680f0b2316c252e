"""What the stories of lost pods, nodes and programs have in common: a small run, and waiting for what follows a fault.

Kubernetes takes long to give up a node or to start a pod. A story holds the ranks still meanwhile, so that few steps
last for many faults; that training goes on is looked at before and after.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.witness import seconds
from tests.scenarios.cluster_line import ClusterLine
from tests.scenarios.line import Line, Moment
from tests.scenarios.story import Told, told

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.processes import Process
from trainingrun.protocol.messages import AgentPhase, RunView
from trainingrun.protocol.names import MANIFEST_FILE
from trainingrun.protocol.records import Trigger

STEPS = 800
FIRST_FAULT = 10  # step
COUNTED_SECONDS = 10.0  # from what Kubernetes shows of a fault until the status tells of it
KUBERNETES_SECONDS = 90.0  # for a node to be lost or to come back, and for a pod to be moved


@dataclass(frozen=True)
class After:
    """How a story on the cluster ended."""

    told: Told
    line: ClusterLine

    @property
    def pods(self) -> list[str]:
        """Names of all pods there ever were, without that of the run: slot-incarnation."""
        return [name.partition("-")[2] for name in self.line.witness.names()]


def tell(folder: Path, story: Callable[[Any], None], *, nodes: int = 2, **changes: Any) -> After:
    """`told` on the cluster, with one rank a node. `story` gets the ClusterLine.

    In float64, so that another order of summation stays far below any real difference for as long as it takes.
    """
    lines: list[ClusterLine] = []

    def on_cluster(line: Line) -> None:
        assert isinstance(line, ClusterLine)
        lines.append(line)
        goes_on(line, nodes)
        line.wait_for_step(FIRST_FAULT)
        story(line)
        nothing_was_damaged(line)
        with still(line):
            line.wait_for(nobody_leaves, "no pod that is being deleted any more", KUBERNETES_SECONDS)

    shape = {
        "resources__processesPerNode": 1,
        "scale__maxNodes": nodes,
        "training__precision": "FP64",
        **changes,
    }
    return After(told(folder, on_cluster, steps=STEPS, nodes=nodes, **shape), lines[0])


def nothing_was_damaged(line: ClusterLine) -> None:
    """No epoch failed for want of its restore point. Asked while there are logs that say why."""
    now = line.moment()
    if any(epoch.trigger is Trigger.RESTORE_FAILED for epoch in now.epochs):
        line.fail("a restore point could not be used", now)


def nobody_leaves(now: Moment) -> bool:
    return not any(pod.terminating for pod in now.pods)


# ranks


def ranks_of(line: ClusterLine, *slots: int) -> list[Process]:
    return [process for slot in slots for process in line.ranks(slot).values()]


@contextmanager
def frozen(ranks: Sequence[Process]) -> Iterator[None]:
    """These ranks stand still within the block; their agents live on. It is no fault: nobody ends, none is silent."""
    for process in ranks:
        processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in ranks:
            processes.send(process, signal.SIGCONT)


@contextmanager
def still(line: ClusterLine) -> Iterator[None]:
    """All ranks of the newest epoch stand still within the block."""
    slots = [member.slot for member in line.moment().epochs[-1].members]
    with frozen(ranks_of(line, *slots)):
        yield


# what membership knows


def steps_of(view: RunView | None) -> int:
    """Newest step of the newest epoch; 0 before its first one, and when membership cannot be asked."""
    progress = None if view is None else view.progress
    if view is None or progress is None or progress.summary.epoch != view.epoch:
        return 0
    return progress.step if progress.summary.first_step_at > 0 else 0


def goes_on(line: ClusterLine, size: int = 0, after_epoch: int = 0) -> Moment:
    """Until the newest epoch steps, one after `after_epoch`, with `size` nodes if that is given."""

    def steps(now: Moment) -> Moment | None:
        newest = now.view is not None and now.view.epoch == now.epoch > after_epoch
        return now if newest and size in (0, now.members) and steps_of(now.view) else None

    return line.wait_for(steps, f"steps after epoch {after_epoch}, nodes: {size or 'any number of'}")


def grows_to(line: ClusterLine, size: int, meanwhile: Callable[[], None] = lambda: None) -> Moment:
    """Until `size` nodes train. The ranks stand still, and `meanwhile` is done, until the newcomers have joined."""

    def have_joined(now: Moment) -> bool:
        members = () if now.view is None else now.view.members
        return len(members) == size and all(member.phase is not AgentPhase.PREPARING for member in members)

    with still(line):
        meanwhile()
        line.wait_for(have_joined, f"{size} nodes in membership", KUBERNETES_SECONDS)
    return goes_on(line, size)


def steps_without_api(line: ClusterLine, steps: int = 5, timeout_seconds: float = 30.0) -> RunView:
    """Until membership knows of more steps, whatever the API server does."""
    first, deadline = line.view(), time.monotonic() + timeout_seconds
    while True:
        view = line.view()
        if view is not None and steps_of(view) >= steps_of(first) + steps > steps:
            return view
        assert time.monotonic() < deadline, f"no more steps without the API server: {first} {view}"
        time.sleep(0.2)


# what Kubernetes and the status say


def lost_since(line: ClusterLine, node: str) -> float:
    """Wait until Kubernetes says that the node does not answer; since when, in seconds since 1970."""

    def since(_: Moment) -> float | None:
        found = line.api.get(f"/api/v1/nodes/{node}") or {}
        ready = next(item for item in found["status"]["conditions"] if item["type"] == "Ready")
        return None if ready["status"] == "True" else seconds(ready["lastTransitionTime"])

    return line.wait_for(since, f"{node} is lost", KUBERNETES_SECONDS)


def counted(line: ClusterLine, disruptions: int, since: float, cause: str = "Infrastructure") -> None:
    """The status counts so many disruptions, all of this cause, and did so in time after `since` (since 1970)."""

    def counts(now: Moment) -> dict[str, int] | None:
        found = (now.status.get("disruptions") or {}).get("byCause") or []
        causes = {item["cause"]: item["count"] for item in found}
        return causes if sum(causes.values()) >= disruptions else None

    causes = line.wait_for(counts, f"{disruptions} disruptions in the status", KUBERNETES_SECONDS)
    took = time.time() - since
    assert set(causes) == {cause}, causes
    assert took <= COUNTED_SECONDS, f"the status told of disruption {disruptions} only after {took:.1f} s"


def is_leaving(line: ClusterLine, slot: int, incarnation: int) -> bool:
    """Is that pod still there, and being deleted?"""
    return any(
        (pod.slot, pod.incarnation, pod.terminating) == (slot, incarnation, True)
        for pod in line.moment().pods
    )


# what was done after it was too late


def late_work(told: Told, folder: Path) -> list[str]:
    """Steps and checkpoints of an epoch that came after its successor's record was made."""
    ends = {before.epoch: after.created_at for before, after in itertools.pairwise(told.epochs)}

    def is_late(epoch: int, at: float) -> bool:
        return at > ends.get(epoch, at)

    logs = (folder / "line" / "logs").glob("*/metrics-e*.jsonl")
    rows = [json.loads(row) for path in logs for row in path.read_text().splitlines()]
    steps = [row for row in rows if "loss" in row and is_late(row["epoch"], row["at"])]
    manifests = (folder / "checkpoints").glob(f"*/*/{MANIFEST_FILE}")
    saved = [
        path for path in manifests if is_late(json.loads(path.read_text())["epoch"], path.stat().st_mtime)
    ]
    return [
        *(f"step {row['step']} of epoch {row['epoch']}" for row in steps),
        *(f"checkpoint {path.parent.name}" for path in saved),
    ]
