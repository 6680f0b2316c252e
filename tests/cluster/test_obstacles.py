"""What hinders workers on a real cluster: crashes, memory, quotas, names that are taken, objects that are deleted.

The run goes on as far as it can, says what it waits for, and the operator neither storms nor falls over.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.disturbances import goes_on
from tests.cluster.installation import CONTROLLER, MEMBERSHIP
from tests.cluster.memory import kill_for_memory, parent
from tests.cluster.runs import SMALL, Health, Run, a_space
from tests.cluster.witness import seconds
from tests.scenarios.cluster_line import ClusterLine, ClusterLines
from tests.scenarios.line import Moment
from tests.scenarios.manifests import small_manifest

from trainingrun.api.constants import GROUP, PLURAL, VERSION, Label, Reason
from trainingrun.protocol.records import Trigger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ENDLESS = {"steps": 100_000}
QUIET_SECONDS = 10.0  # so long nothing may be made that was deleted


@dataclass(frozen=True)
class Stuck:
    """Runs that cannot begin. They are there from the first test on."""

    ends_at_once: Run
    robbed: Run
    squatter: Mapping[str, Any]


@pytest.fixture(scope="module", autouse=True)
def stuck(operator: ClusterLines, shared_folder: Path) -> Iterator[Stuck]:
    with a_space(operator) as space:
        squatter = space.create("pods", a_pod("robbed-0-0"))
        lonely = {"resources__perNode": SMALL, "scale__maxNodes": 1}
        broken = [{"name": "trainer", "env": [{"name": "PYTHONPATH", "value": "/nowhere"}]}]
        crashing = small_manifest(
            shared_folder, "ends-at-once", podTemplate__spec={"containers": broken}, **lonely
        )
        waiting = [{"name": "trainer", "image": "localhost/nowhere:1", "imagePullPolicy": "Never"}]
        robbed = small_manifest(shared_folder, "robbed", podTemplate__spec={"containers": waiting}, **lonely)
        yield Stuck(space.apply(crashing), space.apply(robbed), squatter)


# workers that die


def test_what_the_kernel_kills_for_memory_is_counted_as_out_of_memory(
    operator: ClusterLines, folder: Path
) -> None:
    """A rank, or the server that ranks are forked from: by itself the kernel takes the larger one."""
    with training(operator, folder) as line:
        [rank] = line.ranks(1).values()
        kill_for_memory(parent(rank.pid))
        goes_on(line, 2, after_epoch=1)
        [rank] = line.ranks(1).values()
        kill_for_memory(rank.pid)
        now = goes_on(line, 2, after_epoch=2)
        assert [epoch.trigger for epoch in now.epochs] == [Trigger.STARTED, *2 * [Trigger.PROCESS_DIED]]
        now = line.wait_for(lambda now: now if counted(now) >= 2 else None, "two disruptions in the status")
        assert causes(now) == {"OutOfMemory": 2}, [epoch.exits for epoch in now.epochs]
        assert line.witness.names() == ["scenario-0-0", "scenario-1-0"]


def test_a_worker_that_dies_again_and_again_is_given_a_new_pod(operator: ClusterLines, folder: Path) -> None:
    """Once, the kubelet starts its container again at once. Then it makes it wait, at last longer than the run does."""
    with training(operator, folder) as line:
        kills = 0
        now = line.moment()
        while line.pod_of(1).incarnation == 0:
            assert kills < 4, line.logs()
            assert line.pod_of(1).restarts == kills
            line.kill_agent(1)
            kills += 1
            now = goes_on(line, 2, after_epoch=now.epoch)
        assert kills > 1
        assert [len(epoch.members) for epoch in now.epochs] == [2, *kills * [1, 2]]
        assert line.witness.names() == ["scenario-0-0", "scenario-1-0", "scenario-1-1"]
        now = line.wait_for(
            lambda now: now if counted(now) >= kills else None, "each disruption in the status"
        )
        assert causes(now) == {"Infrastructure": kills}
        assert any("scenario-1-1: crash looping for" in event.message for event in line.events())


# quota


def test_a_quota_is_said_and_kept_and_the_run_grows_when_it_is_lifted(
    operator: ClusterLines, folder: Path
) -> None:
    def few(line: ClusterLine) -> None:
        set_quota(line, pods=1, records=1)  # the revision, and no epoch

    with applied(operator, folder, few) as line:
        line.wait_for(
            lambda now: says(now, "the record of epoch 1 is refused: ", "exceeded quota: few"),
            "a message that names the quota of records",
        )
        set_quota(line, pods=1, records=100)
        goes_on(line, 1)
        line.wait_for(
            lambda now: now.is_true("Ready") and says(now, "1 of 2 nodes", "exceeded quota: few"),
            "a message that names the quota of pods, while it trains",
        )
        set_quota(line, pods=2, records=100)
        goes_on(line, 2)


# deletion


def test_a_run_that_is_deleted_during_a_recovery_takes_everything_along(
    operator: ClusterLines, folder: Path
) -> None:
    with training(operator, folder) as line:
        uid, health = line.witness.run_uid, Health(operator.installation)
        label_records(line)
        until_recovering(line)
        line.api.delete(f"/apis/{GROUP}/{VERSION}/namespaces/{line.namespace}/{PLURAL}/scenario")
        until_gone(line, uid)
        quiet_until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < quiet_until:
            assert children(line, uid) == []
            time.sleep(0.2)
        assert line.witness.names() == ["scenario-0-0", "scenario-1-0"]
        health.check()


def test_a_namespace_that_is_deleted_while_a_run_trains_upsets_nobody(
    operator: ClusterLines, folder: Path
) -> None:
    with training(operator, folder) as line:
        health = Health(operator.installation)
        line.api.delete(f"/api/v1/namespaces/{line.namespace}")
        assert line.leaks() == []
        health.check()
        # Each seat and the next record may be tried a few times while the namespace goes.
        assert sum(health.refused(kind) for kind in ("pods", "controllerrevisions")) <= 12
        assert health.log().count(line.namespace) <= 40, health.log()


# the operator away


def test_a_run_that_is_applied_while_the_operator_is_away_starts_when_it_is_back(
    operator: ClusterLines, folder: Path
) -> None:
    def gone(_: ClusterLine) -> None:
        for program in (CONTROLLER, MEMBERSHIP):
            operator.installation.kill(program)

    with applied(operator, folder, gone, nodes=1) as line:
        assert not line.moment().status["observedGeneration"]  # nobody has seen it
        for program in (CONTROLLER, MEMBERSHIP):
            operator.installation.scale(program, 1)
        goes_on(line, 1)


# workers that never begin


def test_a_pod_of_somebody_else_keeps_our_name_and_the_seat_gets_the_next(stuck: Stuck) -> None:
    run = stuck.robbed
    run.says("Ready=False", Reason.IMAGE_ERROR)  # it has come as far as it can
    assert [pod["metadata"]["name"] for pod in run.pods] == ["robbed-0-1"]
    there = run.space.pods[stuck.squatter["metadata"]["uid"]]
    assert there["metadata"].get("deletionTimestamp") is None
    assert "ownerReferences" not in there["metadata"]
    path = f"/apis/events.k8s.io/v1/namespaces/{run.space.namespace}/events"
    notes = [event.get("note", "") for event in run.space.operator.installation.api.list(path)]
    assert "the name robbed-0-0 belongs to a pod of another owner; created robbed-0-1 instead" in notes


def test_a_worker_that_ends_at_once_is_replaced_ever_more_slowly_and_its_words_are_told(stuck: Stuck) -> None:
    run = stuck.ends_at_once
    told = run.says("Stalled=True", Reason.POD_CANNOT_START, 90)
    assert "ended before it could train: exit code 1 (Error): " in told.message
    assert "No module named" in told.message
    made = [seconds(pod["metadata"]["creationTimestamp"]) for pod in run.pods]
    assert len(made) >= 3
    for number, (one, next_one) in enumerate(itertools.pairwise(made)):
        assert next_one - one >= min(2.0**number, 60.0) - 1.0, f"pod {number + 1} came too soon: {made}"


# builders and what is looked at


@contextmanager
def applied(
    operator: ClusterLines, folder: Path, before: Callable[[ClusterLine], None], nodes: int = 2
) -> Iterator[ClusterLine]:
    """A run with one rank a node that nobody waits for, and that leaves nothing. `before` happens first."""
    shape = {"resources__perNode": SMALL, "resources__processesPerNode": 1, "scale__maxNodes": nodes}
    opened = operator.open(nodes, folder / "line")
    assert isinstance(opened, ClusterLine)
    with opened as line:
        before(line)
        line.apply(small_manifest(folder, training__duration=ENDLESS, **shape))
        yield line
        assert line.objections() == []
    assert opened.leaks() == []


@contextmanager
def training(operator: ClusterLines, folder: Path, nodes: int = 2) -> Iterator[ClusterLine]:
    with applied(operator, folder, lambda _: None, nodes) as line:
        goes_on(line, nodes)
        yield line


def a_pod(name: str) -> dict[str, Any]:
    """Somebody's, that is never scheduled."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulingGates": [{"name": "example.com/never"}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "one", "image": "localhost/nowhere:1", "securityContext": security}],
        },
    }


def set_quota(line: ClusterLine, pods: int, records: int) -> None:
    """Of so many pods and ControllerRevisions; in force when this returns."""
    hard = {"pods": str(pods), "count/controllerrevisions.apps": str(records)}
    path = f"/api/v1/namespaces/{line.namespace}/resourcequotas"
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    line.api.apply(f"{path}/few", body, "test")
    deadline = time.monotonic() + 30
    while ((line.api.get(f"{path}/few") or {}).get("status") or {}).get("hard") != hard:
        assert time.monotonic() < deadline, "the quota does not come into force"
        time.sleep(0.1)


def says(now: Moment, *words: str) -> bool:
    """Are all of these in the message of Ready?"""
    ready = [item for item in now.status.get("conditions") or [] if item["type"] == "Ready"]
    return bool(ready) and all(word in ready[0]["message"] for word in words)


def causes(now: Moment) -> dict[str, int]:
    found = (now.status.get("disruptions") or {}).get("byCause") or []
    return {item["cause"]: item["count"] for item in found}


def counted(now: Moment) -> int:
    return sum(causes(now).values())


def label_records(line: ClusterLine) -> None:
    """As backup tools do, and the garbage collector when a run is deleted without its children."""
    path = f"/apis/apps/v1/namespaces/{line.namespace}/controllerrevisions"
    items = line.api.list(path)
    assert len(items) >= 2
    for item in items:
        line.api.patch(f"{path}/{item['metadata']['name']}", {"metadata": {"labels": {"example.com/a": "b"}}})


def until_recovering(line: ClusterLine) -> None:
    """Kills a rank until the new epoch is seen while it is proposed, which takes less than a second."""
    for _ in range(5):
        before = line.moment().epoch
        line.kill_rank(1, 0)
        deadline = time.monotonic() + 20
        while (view := line.view()) is None or view.epoch == before:
            if view is not None and view.proposing:
                return
            assert time.monotonic() < deadline, f"no new epoch is proposed: {view}"
        goes_on(line, 2, after_epoch=before)
    raise AssertionError("no epoch was seen while it was proposed")


def until_gone(line: ClusterLine, uid: str) -> None:
    deadline = time.monotonic() + 60
    while left := children(line, uid):
        assert time.monotonic() < deadline, f"still there: {left}\n{line.logs()}"
        time.sleep(0.2)


def children(line: ClusterLine, uid: str) -> list[str]:
    """What there is of the run: by its label, and by its uid as the owner."""
    found = []
    for group, kind in (
        ("api/v1", "pods"),
        ("api/v1", "configmaps"),
        ("apis/apps/v1", "controllerrevisions"),
    ):
        items = line.api.list(f"/{group}/namespaces/{line.namespace}/{kind}")
        found += [f"{kind}/{item['metadata']['name']}" for item in items if belongs(item, uid)]
    return found


def belongs(item: Mapping[str, Any], uid: str) -> bool:
    about = item["metadata"]
    owners = [owner["uid"] for owner in about.get("ownerReferences") or []]
    return uid in owners or (about.get("labels") or {}).get(Label.RUN_UID.value) == uid
