"""Runs, nodes, records, events and settings: what the adapter makes of objects, and objects of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.operator.control_builders import a_spec
from tests.operator.kube_builders import (
    RUN,
    SPACE,
    a_node_object,
    a_run_object,
    epoch_of,
    revision_of,
)

from trainingrun.api.conditions import initial_conditions, set_condition
from trainingrun.api.load import parse
from trainingrun.cluster.kubernetes import events, nodes, records, runs
from trainingrun.cluster.kubernetes.objects import micro_time, seconds
from trainingrun.cluster.kubernetes.settings import BadSetting, KubeSettings
from trainingrun.ports import EventRecord
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, Revision
from trainingrun.protocol.wire import WireError

NEEDED = {
    "TRAININGRUN_OPERATOR_NAMESPACE": "system",
    "TRAININGRUN_TRAINER_IMAGE": "registry.example/trainer:1",
    "TRAININGRUN_MEMBERSHIP_NAME": "tr-membership",
}


def test_a_run_is_its_name_and_spec_and_nothing_else_of_its_metadata() -> None:
    item = a_run_object()
    item["metadata"].update(
        labels={"a": "b"}, annotations={"kubectl": "x"}, managedFields=[{}], resourceVersion="7"
    )
    run = runs.translate(item)
    assert (run.key, run.uid, run.generation, run.resource_version) == ("team-a/demo", "uid-demo", 1, "7")
    assert run.manifest["metadata"] == {"name": "demo", "namespace": SPACE}
    assert not run.deleting


def test_the_manifest_of_a_stored_run_is_one_that_is_accepted() -> None:
    run = runs.translate(a_run_object(spec=a_spec()))
    assert parse(run.manifest, None).metadata.name == "demo"


def test_conditions_that_the_schema_gave_are_not_taken_for_set() -> None:
    assert (
        runs.translate(a_run_object(status={"conditions": initial_conditions(0, 0)})).status["conditions"]
        == []
    )


def test_conditions_that_were_set_stay() -> None:
    conditions = set_condition(initial_conditions(0, 0), "Ready", "True", "Training", "", 1, 1_800_000_000.0)
    left = runs.translate(a_run_object(status={"conditions": conditions})).status["conditions"]
    assert [one["type"] for one in left] == ["Ready"]


def test_a_change_of_status_is_no_news_but_one_of_spec_or_a_deletion_is() -> None:
    before, after = a_run_object(), a_run_object(status={"progress": {"step": 1}})
    assert runs.news_of(before) == runs.news_of(after)
    after["metadata"]["generation"] = 2
    assert runs.news_of(before) != runs.news_of(after)


@pytest.mark.parametrize(("said", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_is_ready_only_when_its_condition_is_true(said: str, ready: bool) -> None:
    node = nodes.translate(a_node_object(ready=said))
    assert (node.name, node.ready, node.capacity["cpu"]) == ("node1", ready, "2")


def test_a_heartbeat_of_a_node_is_no_news_but_a_taint_is() -> None:
    before, after = a_node_object(), a_node_object()
    after["status"]["conditions"][0]["lastHeartbeatTime"] = "2030-01-01T00:00:00Z"
    after["metadata"]["resourceVersion"] = "99"
    assert nodes.news_of(before) == nodes.news_of(after)
    assert nodes.news_of(before) != nodes.news_of(
        a_node_object(taints=[{"key": "spot", "effect": "NoExecute"}])
    )
    assert nodes.news_of(before) != nodes.news_of(a_node_object(ready="Unknown"))


@pytest.mark.parametrize("record", [revision_of(number=2), epoch_of(7)])
def test_a_record_comes_back_from_the_cluster_as_it_was(record: Revision | Epoch) -> None:
    item = records.to_object(record, RUN)
    assert item["metadata"]["name"] == record.name
    assert item["revision"] == records.number(record)
    assert item["metadata"]["labels"]["trainingrun.dev/record"] == type(record).__name__
    assert records.from_object(type(record), item, RUN.uid) == record


def test_a_record_is_text_which_nobody_writes_in_other_words_and_a_long_one_is_small() -> None:
    short = records.to_object(revision_of(), RUN)["data"]
    assert list(short) == [records.TEXT]
    assert json.loads(short[records.TEXT]) == wire.to_json(revision_of())
    rungs = tuple(replace(revision_of().rungs[0], nodes=nodes) for nodes in range(1, 4097))
    long = replace(revision_of(), rungs=rungs, plan={"rungs": [wire.to_json(rung) for rung in rungs]})
    item = records.to_object(long, RUN)
    assert list(item["data"]) == [records.COMPRESSED]
    assert len(item["data"][records.COMPRESSED]) < 512 * 1024  # etcd takes 1.5 MiB
    assert records.from_object(Revision, item, RUN.uid) == long


@pytest.mark.parametrize(
    "data", [None, {}, {"record": "{"}, {"recordGzip": "%"}, {"recordGzip": "aGVsbG8="}, {"a": "{}"}]
)
def test_data_that_is_no_record_is_named(data: object) -> None:
    item = records.to_object(revision_of(), RUN) | {"data": data}
    with pytest.raises(WireError, match=r"ControllerRevision .*-r1: data: "):
        records.from_object(Revision, item, RUN.uid)


def test_a_record_of_another_owner_is_not_ours() -> None:
    item = records.to_object(epoch_of(7), RUN)
    item["metadata"]["ownerReferences"] = []
    assert records.from_object(Epoch, item, RUN.uid) is None


def test_a_copy_of_a_record_under_another_name_is_not_ours() -> None:
    item = records.to_object(epoch_of(7), RUN)
    item["metadata"]["name"] = "demo-e8"
    assert records.from_object(Epoch, item, RUN.uid) is None


def test_a_damaged_record_is_named() -> None:
    item = records.to_object(epoch_of(7), RUN)
    content = json.loads(item["data"][records.TEXT])
    del content["members"]
    item["data"] = {records.TEXT: json.dumps(content)}
    with pytest.raises(WireError, match=r"ControllerRevision demo-e7: data: \$\.members: missing"):
        records.from_object(Epoch, item, RUN.uid)


def test_the_same_event_has_the_same_name_at_any_time() -> None:
    first = EventRecord(1.0, "Normal", "Planned", "it fits")
    again = EventRecord(99.0, "Normal", "Planned", "it fits")
    other = EventRecord(1.0, "Normal", "Planned", "it fits better")
    assert events.event_name(RUN, first) == events.event_name(RUN, again)
    assert events.event_name(RUN, first) != events.event_name(RUN, other)


def test_an_event_that_is_said_again_is_counted() -> None:
    event = EventRecord(2.0, "Normal", "Planned", "it fits")
    first = events.said_again(events.new_event(RUN, event, "controller-0"), event)
    assert first["series"]["count"] == 2
    assert events.said_again(first, event)["series"] == {
        "count": 3,
        "lastObservedTime": "1970-01-01T00:00:02.000000Z",
    }


def test_a_long_event_is_cut_to_what_the_api_takes_without_breaking_a_letter() -> None:
    note = events.new_event(RUN, EventRecord(1.0, "Warning", "Failed", "ä" * 2000), "x")["note"]
    assert len(note.encode()) <= events.NOTE_BYTES
    assert note.endswith("ä…")


def test_times_are_read_with_and_without_fractions() -> None:
    assert seconds("2026-11-30T03:04:05Z") + 0.25 == seconds("2026-11-30T03:04:05.250000Z")
    assert seconds(micro_time(1_800_000_000.5)) == 1_800_000_000.5
    assert seconds(None) == seconds("never") == 0.0


def test_settings_come_from_the_environment() -> None:
    settings = KubeSettings.from_environment(
        {**NEEDED, "TRAININGRUN_WATCH_NAMESPACES": "a, b,", "TRAININGRUN_HEALTH_PORT": "9000"}
    )
    assert settings.watch_namespaces == ("a", "b")
    assert settings.health_port == 9000
    assert settings.membership_url == "https://tr-membership.system.svc:8443"
    assert settings.ca_name == "tr-membership-ca"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"TRAININGRUN_TRAINER_IMAGE": ""}, "TRAININGRUN_TRAINER_IMAGE is not set"),
        ({"TRAININGRUN_HEALTH_PORT": "http"}, "TRAININGRUN_HEALTH_PORT: 'http' is no number"),
        ({"TRAININGRUN_CACHE_SECONDS": "-1"}, "TRAININGRUN_CACHE_SECONDS: '-1' is no number from 0 on"),
        ({"TRAININGRUN_RESYNC_SECONDS": "0"}, "TRAININGRUN_RESYNC_SECONDS: '0' is no number from 1 on"),
        ({"TRAININGRUN_REQUEST_SECONDS": "90"}, "'90' is no number from 1 to 60: longest wait for"),
        ({"TRAININGRUN_REQUEST_SECONDS": "nan"}, "'nan' is no number"),
        ({"TRAININGRUN_TRAINER_IMAGE_PULL_POLICY": "Sometimes"}, "'Sometimes' is none of Always"),
    ],
)
def test_a_bad_setting_names_the_variable_and_the_value(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        KubeSettings.from_environment({**NEEDED, **wrong})
