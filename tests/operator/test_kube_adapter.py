"""The adapter over HTTP against an API server in memory: what is created, found, refused, and kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.operator.fake_api import Answered, FakeApiServer
from tests.operator.kube_builders import (
    CERTIFICATE,
    NOW,
    RUN,
    SETTINGS,
    SPACE,
    a_node_object,
    a_pod_object,
    a_run_object,
    epoch_of,
    revision_of,
    template_of,
)

from trainingrun.cluster.kubernetes.adapter import KubePort, KubeRecords
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.objects import RunRef
from trainingrun.ports import Claim, Conflict, EventRecord, Refused, Unavailable
from trainingrun.protocol.messages import DurableCheckpoint

EARLIER = RunRef(SPACE, "demo", "uid-earlier")  # a run of the same name, before this one


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        server.put("trainingruns", a_run_object())
        server.put("nodes", a_node_object())
        server.put(
            "configmaps",
            {
                "metadata": {"name": "trainingrun-membership-ca", "namespace": "system"},
                "data": {"ca.crt": CERTIFICATE},
            },
        )
        yield server


@pytest.fixture
def port(server: FakeApiServer) -> KubePort:
    return KubePort(Api.at(server.url, 2.0), SETTINGS, clock=lambda: NOW)


@pytest.fixture
def ready(port: KubePort) -> KubePort:
    """With a revision, so that pods can be created."""
    port.get_run(RUN.key)
    port.create(revision_of())
    return port


# runs


def test_runs_are_listed_by_key(port: KubePort, server: FakeApiServer) -> None:
    server.put("trainingruns", a_run_object(RunRef(SPACE, "two", "uid-two")))
    server.put("trainingruns", a_run_object(RunRef("team-b", "not-watched", "uid-three")))
    assert port.run_keys() == ["team-a/demo", "team-a/two"]


def test_a_run_that_is_gone_is_none(port: KubePort) -> None:
    assert port.get_run("team-a/nothing") is None


def test_status_is_written_where_the_run_is_as_it_was_read(port: KubePort, server: FakeApiServer) -> None:
    run = port.get_run(RUN.key)
    assert run is not None
    port.write_status(RUN.key, {"progress": {"step": 3}}, run.resource_version)
    stored = server.get("trainingruns", SPACE, "demo")
    assert stored is not None
    assert (stored["status"], stored["spec"]) == ({"progress": {"step": 3}}, {"task": "pretrain"})


def test_status_of_a_run_that_changed_is_a_conflict(port: KubePort, server: FakeApiServer) -> None:
    run = port.get_run(RUN.key)
    assert run is not None
    server.put("trainingruns", a_run_object(spec={"task": "sft"}))
    with pytest.raises(Conflict):
        port.write_status(RUN.key, {}, run.resource_version)


def test_status_of_a_run_that_is_gone_is_a_conflict(port: KubePort, server: FakeApiServer) -> None:
    server.remove("trainingruns", SPACE, "demo")
    with pytest.raises(Conflict, match="gone"):
        port.write_status(RUN.key, {}, "1")


# pods


def test_a_pod_is_created_with_its_seat_its_owner_and_what_it_mounts(
    ready: KubePort, server: FakeApiServer
) -> None:
    ready.create_pod(template_of(slot=1, incarnation=2))
    pod = server.get("pods", SPACE, "demo-1-2")
    assert pod is not None
    assert pod["metadata"]["labels"] == {
        "team": "nlp",
        "trainingrun.dev/slot": "1",
        "trainingrun.dev/incarnation": "2",
        "trainingrun.dev/revision": "demo-r1",
    }
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (RUN.uid, True, True)
    spec = server.get("configmaps", SPACE, "demo-r1")
    assert spec is not None
    assert spec["immutable"]
    assert json.loads(spec["data"]["spec.json"]) == revision_of().spec
    authority = server.get("configmaps", SPACE, "demo-membership")
    assert authority is not None
    assert authority["data"] == {"ca.crt": CERTIFICATE}


def test_what_pods_mount_is_not_written_again_for_each_pod(ready: KubePort, server: FakeApiServer) -> None:
    for slot in range(3):
        ready.create_pod(template_of(slot))
    assert server.asked("PATCH", "configmaps") == 2


def test_a_second_controller_finds_what_pods_mount_and_writes_nothing(
    ready: KubePort, server: FakeApiServer
) -> None:
    ready.create_pod(template_of(0))
    other = KubePort(Api.at(server.url, 2.0), SETTINGS, clock=lambda: NOW)
    other.get_run(RUN.key)
    other.create_pod(template_of(1))
    assert server.asked("PATCH", "configmaps") == 2
    assert server.names("pods") == ["demo-0-0", "demo-1-0"]


def test_a_config_map_of_somebody_else_is_not_taken_over(ready: KubePort, server: FakeApiServer) -> None:
    theirs = {"metadata": {"name": "demo-membership", "namespace": SPACE}, "data": {"a": "b"}}
    server.put("configmaps", theirs)
    with pytest.raises(Refused, match="ConfigMap team-a/demo-membership belongs to somebody else"):
        ready.create_pod(template_of())
    assert (server.get("configmaps", SPACE, "demo-membership") or {})["data"] == {"a": "b"}


def test_no_pod_is_created_before_membership_has_a_certificate(
    ready: KubePort, server: FakeApiServer
) -> None:
    server.remove("configmaps", "system", "trainingrun-membership-ca")
    with pytest.raises(Unavailable, match="membership has not started yet"):
        ready.create_pod(template_of())
    assert server.names("pods") == []


def test_creating_the_same_pod_again_is_no_conflict(ready: KubePort, server: FakeApiServer) -> None:
    ready.create_pod(template_of())
    ready.create_pod(template_of())
    assert server.names("pods") == ["demo-0-0"]


def test_a_pod_of_ours_that_is_being_deleted_still_has_its_name(
    ready: KubePort, server: FakeApiServer
) -> None:
    server.put("pods", a_pod_object().running().deleting().item)
    with pytest.raises(Conflict):
        ready.create_pod(template_of())


def test_a_foreign_pod_with_our_name_is_a_conflict_and_is_shown_from_then_on(
    ready: KubePort, server: FakeApiServer
) -> None:
    server.put("pods", a_pod_object().foreign().running().item)
    assert ready.pods(RUN.key) == []
    with pytest.raises(Conflict):
        ready.create_pod(template_of())
    found = ready.pods(RUN.key)
    assert [(pod.name, pod.run_uid) for pod in found] == [("demo-0-0", "")]
    server.remove("pods", SPACE, "demo-0-0")
    assert ready.pods(RUN.key) == []


def test_a_pod_that_is_refused_carries_the_servers_reason(ready: KubePort, server: FakeApiServer) -> None:
    server.refusals["POST", "pods"] = Answered(403, "exceeded quota: q, limited: pods=2")
    with pytest.raises(Refused, match="exceeded quota") as refused:
        ready.create_pod(template_of())
    assert refused.value.reason == "Forbidden"


def test_only_that_very_pod_is_deleted(ready: KubePort, server: FakeApiServer) -> None:
    server.put("pods", a_pod_object().running().item)
    ready.delete_pod(RUN.key, "demo-0-0", "uid-of-another")
    assert server.names("pods") == ["demo-0-0"]
    ready.delete_pod(RUN.key, "demo-0-0", "uid-0-0")
    ready.delete_pod(RUN.key, "demo-0-0", "uid-0-0")
    assert server.names("pods") == []


def test_pods_of_other_runs_are_not_shown(port: KubePort, server: FakeApiServer) -> None:
    server.put("pods", a_pod_object(0).running().item)
    server.put("pods", a_pod_object(0, run=RunRef(SPACE, "other", "uid-other")).running().item)
    assert [pod.name for pod in port.pods(RUN.key)] == ["demo-0-0"]


def test_a_pod_on_a_node_that_has_just_come_is_not_taken_for_lost(server: FakeApiServer) -> None:
    slow = replace(SETTINGS, cache_seconds=3600.0)
    port = KubePort(Api.at(server.url, 2.0), slow, clock=lambda: NOW)
    assert [node.name for node in port.nodes()] == ["node1"]
    server.put("nodes", a_node_object("node2"))
    server.put("pods", a_pod_object().running("node2").item)
    assert port.pods(RUN.key)[0].reason == ""


def test_nodes_are_read_again_when_one_changed(server: FakeApiServer) -> None:
    slow = replace(SETTINGS, cache_seconds=3600.0)
    port = KubePort(Api.at(server.url, 2.0), slow, clock=lambda: NOW)
    assert port.nodes()[0].ready
    server.put("nodes", a_node_object(ready="Unknown"))
    assert port.nodes()[0].ready
    port.news.nodes_changed()
    assert not port.nodes()[0].ready


def test_claims_are_found_or_missing(port: KubePort, server: FakeApiServer) -> None:
    server.put(
        "persistentvolumeclaims",
        {
            "metadata": {"name": "data", "namespace": SPACE},
            "spec": {"accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"]},
        },
    )
    found = port.claims(RUN.key, ["data", "nothing"])
    assert found == {"data": Claim("data", ("ReadWriteOnce",), "Bound"), "nothing": None}


# records


def test_records_are_created_once_and_found(port: KubePort) -> None:
    port.get_run(RUN.key)
    port.create(revision_of())
    for number in (1, 2):
        port.create(epoch_of(number))
    with pytest.raises(Conflict):
        port.create(epoch_of(2))
    assert port.revisions(RUN.uid) == [revision_of()]
    assert [record.epoch for record in port.epochs(RUN.uid)] == [1, 2]
    assert port.epochs(RUN.uid, after=1) == [epoch_of(2)]


def test_records_of_another_writer_are_found_without_a_list(port: KubePort, server: FakeApiServer) -> None:
    membership = KubeRecords(Api.at(server.url, 2.0), SETTINGS)
    membership.create(epoch_of(1))
    assert len(port.epochs(RUN.uid)) == 1
    membership.create(epoch_of(2))
    membership.create(epoch_of(3))
    before = server.asked("GET", "controllerrevisions?")
    assert [record.epoch for record in port.epochs(RUN.uid, after=1)] == [2, 3]
    assert server.asked("GET", "controllerrevisions?") == before


def test_a_record_of_an_earlier_run_of_the_same_name_is_a_conflict_and_not_shown(
    port: KubePort, server: FakeApiServer
) -> None:
    server.put("trainingruns", a_run_object(replace(EARLIER, name="old")))
    earlier = epoch_of(1, EARLIER)
    server.put(
        "controllerrevisions",
        {"metadata": {"name": "demo-e1", "namespace": SPACE}, "data": {"name": earlier.name}},
    )
    with pytest.raises(Conflict):
        port.create(epoch_of(1))
    assert port.epochs(RUN.uid) == []


def test_a_record_of_a_run_that_is_gone_is_a_conflict(port: KubePort, server: FakeApiServer) -> None:
    server.remove("trainingruns", SPACE, "demo")
    with pytest.raises(Conflict, match="gone"):
        port.create(epoch_of(1))


def test_a_record_that_is_refused_is_told_to_the_controller_and_to_membership(
    port: KubePort, server: FakeApiServer
) -> None:
    server.refusals["POST", "controllerrevisions"] = Answered(403, "exceeded quota: count")
    with pytest.raises(Refused):
        port.create(revision_of())
    with pytest.raises(Refused, match="exceeded quota"):
        KubeRecords(Api.at(server.url, 2.0), SETTINGS).create(epoch_of(1))


# what membership asks


def membership_records(server: FakeApiServer, cache_seconds: float = 0.0) -> KubeRecords:
    return KubeRecords(Api.at(server.url, 2.0), replace(SETTINGS, cache_seconds=cache_seconds))


def test_a_run_exists_until_it_is_gone(server: FakeApiServer) -> None:
    records = membership_records(server)
    assert records.run_exists(RUN.uid) == "demo"
    server.remove("trainingruns", SPACE, "demo")
    assert records.run_exists(RUN.uid) is None


def test_a_run_that_is_asked_to_go_is_gone_for_its_agents(server: FakeApiServer) -> None:
    item = a_run_object()
    item["metadata"].update(deletionTimestamp="2026-11-30T00:00:00Z", finalizers=["foregroundDeletion"])
    server.put("trainingruns", item)
    records = membership_records(server)
    assert records.run_exists(RUN.uid) is None
    assert records.revisions(RUN.uid) == []  # but its records can still be read


def test_many_questions_about_runs_are_one_list(server: FakeApiServer) -> None:
    records = membership_records(server, cache_seconds=60.0)
    for _ in range(5):
        assert records.run_exists(RUN.uid) == "demo"
        assert records.run_exists("uid-nobody") is None
    assert server.asked("GET", "trainingruns") == 2  # the second one to be sure of nobody


def test_a_new_run_is_found_at_once(server: FakeApiServer) -> None:
    records = membership_records(server, cache_seconds=60.0)
    assert records.run_exists(RUN.uid) == "demo"
    server.put("trainingruns", a_run_object(RunRef(SPACE, "new", "uid-new")))
    assert records.run_exists("uid-new") == "new"


def test_while_the_api_server_is_away_a_known_run_is_there_and_another_is_unknown(
    server: FakeApiServer,
) -> None:
    records = membership_records(server)
    assert records.run_exists(RUN.uid) == "demo"
    server.away = True
    assert records.run_exists(RUN.uid) == "demo"
    with pytest.raises(Unavailable):
        records.run_exists("uid-other")


def test_the_saved_checkpoint_is_the_one_that_status_names(server: FakeApiServer) -> None:
    records = membership_records(server)
    assert records.saved_checkpoint(RUN.uid) is None
    durable = {"manifest": "step-00000500.e0003", "epoch": 3, "step": 500}
    server.put("trainingruns", a_run_object(status={"checkpoint": {"durable": durable}}))
    assert records.saved_checkpoint(RUN.uid) == DurableCheckpoint("step-00000500.e0003", 3, 500)


# events, and trouble


def test_an_event_is_written_once_and_then_counted(port: KubePort, server: FakeApiServer) -> None:
    for _ in range(3):
        port.emit(RUN.key, EventRecord(NOW, "Normal", "Planned", "it fits"))
    (name,) = server.names("events")
    event = server.get("events", SPACE, name)
    assert event is not None
    assert (event["note"], event["series"]["count"]) == ("it fits", 3)
    assert event["regarding"]["uid"] == RUN.uid


def test_an_event_that_is_refused_stops_nothing(port: KubePort, server: FakeApiServer) -> None:
    server.refusals["POST", "events"] = Answered(403, "namespace is being terminated")
    port.emit(RUN.key, EventRecord(NOW, "Normal", "Planned", "it fits"))
    port.emit("team-a/gone", EventRecord(NOW, "Normal", "Planned", "it fits"))


def test_reading_while_the_api_server_is_away_is_unavailable(port: KubePort, server: FakeApiServer) -> None:
    server.away = True
    for read in (port.run_keys, port.nodes, lambda: port.pods(RUN.key), lambda: port.get_run(RUN.key)):
        with pytest.raises(Unavailable):
            read()


def test_reading_what_is_forbidden_is_unavailable_and_says_so(port: KubePort, server: FakeApiServer) -> None:
    server.refusals["GET", "pods"] = Answered(403, "pods is forbidden")
    with pytest.raises(Unavailable, match=r"cannot read pods of team-a/demo: Forbidden: pods is forbidden"):
        port.pods(RUN.key)


def test_membership_that_cannot_be_asked_is_none_and_told_once(
    port: KubePort, caplog: pytest.LogCaptureFixture
) -> None:
    assert port.membership(RUN.uid) is None
    assert port.membership(RUN.uid) is None
    assert len([line for line in caplog.messages if "cannot be asked" in line]) == 1
