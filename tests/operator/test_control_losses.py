"""The event of a loss names what was lost: a node, a pod or a process."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import START, a_run, failed

from trainingrun.control.losses import what_was_lost
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Lost

DELETED = {"terminating": True}
EVICTED = {"terminating": True, "reason": "EvictionByEvictionAPI"}
OUT_OF_MEMORY = {"phase": PodPhase.FAILED, "termination": Termination(137, "OOMKilled", "", epoch=1)}
POD = "pod demo-1-0 on node-1"


@pytest.mark.parametrize(
    ("reason", "pod", "dead", "expected"),
    [
        ("Silent", {}, (1,), ("NodeLost", "node-1 lost")),
        ("ConnectionClosed", {"reason": "NodeLost"}, (), ("NodeLost", "node-1 lost")),
        ("Left", DELETED, (), ("PodLost", f"{POD} was deleted")),
        ("Left", None, (), ("PodLost", f"{POD} was deleted")),
        ("Left", EVICTED, (), ("PodLost", f"{POD} was evicted (EvictionByEvictionAPI)")),
        ("ConnectionClosed", None, (), ("PodLost", f"{POD} is gone")),
        ("ConnectionClosed", failed(7), (), ("PodLost", f"{POD} ended with exit code 7 (Application)")),
        ("ConnectionClosed", OUT_OF_MEMORY, (), ("PodLost", f"{POD} ended with exit code 137 (OOMKilled)")),
        ("Replaced", {}, (), ("PodLost", f"{POD} was replaced")),
        ("Silent", {}, (), ("PodLost", f"{POD} did not answer")),
        ("ConnectionClosed", {}, (), ("ProcessDied", "the agent on node-1 died")),
        ("Restarted", {}, (), ("ProcessDied", "the agent on node-1 died")),
    ],
)
def test_what_is_lost_is_named(reason, pod, dead, expected):
    run = a_run().with_nodes(2, dead=dead).pod(0).epoch(1)
    if pod is not None:
        run.pod(1, pod)
    run.epoch(2, slots=(0,), lost=(Lost(1, 0, "node-1", reason),), at=START + 200)
    before, record = run.records
    assert what_was_lost(record, before, run.observed(), "Infrastructure") == expected
