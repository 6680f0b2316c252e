"""What the ports promise, kept by the local adapter."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.operator.local_builders import a_manifest, a_run, a_template, an_epoch, only

from trainingrun.cluster.local import files
from trainingrun.cluster.local.adapter import LocalPort
from trainingrun.cluster.local.podstore import Binding, PodStatus
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.ports import Conflict, ControlPort, EventRecord, PodPhase, Records
from trainingrun.protocol import wire
from trainingrun.protocol.messages import DurableCheckpoint, RunView

VIEW = RunView("uid", 3, (), None, False, "", "", None, False)


@pytest.fixture
def port(tmp_path: Path) -> LocalPort:
    return LocalPort(tmp_path, LocalSettings(membership_timeout_seconds=0.2), now=lambda: 50.0)


@contextmanager
def a_membership(port: LocalPort, status: int, body: Any) -> Iterator[None]:
    """A membership service that gives this answer, and is where the port looks for it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        files.replace(port.layout.membership, {"host": "127.0.0.1", "port": server.server_port})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


def test_the_local_port_is_both_ports(port: LocalPort) -> None:
    records: Records = port
    control: ControlPort = port
    assert list(control.run_keys()) == []
    assert records.run_exists("nobody") is None


def test_a_run_is_found_by_its_uid_until_it_is_deleted(port: LocalPort, tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    assert port.run_exists(uid) == "demo"
    assert [revision.name for revision in port.revisions(uid)] == ["demo-r1"]
    port.delete_run("demo")
    assert port.run_exists(uid) is None


def test_a_deleted_run_is_gone_when_its_last_pod_is(port: LocalPort, tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    port.create_pod(a_template(uid))
    stored = port.pod_store.of_run("demo")[0]
    port.pod_store.bind(stored, Binding("node-0", "life", str(tmp_path / "memory")))
    port.delete_run("demo")
    (pod,) = port.pod_store.of_run("demo")
    assert pod.deleting
    assert port.get_run("demo") is None  # the node is not alive, so nothing of the pod can run
    assert list(port.run_keys()) == []


def test_a_pod_of_a_run_of_the_same_name_but_another_uid_is_listed_with_its_owner(
    port: LocalPort, tmp_path: Path
) -> None:
    a_run(tmp_path)
    port.create_pod(a_template("another uid"))
    assert only(port.pods("demo")).run_uid == "another uid"
    with pytest.raises(Conflict):
        port.create_pod(a_template("ours"))


def test_a_pod_whose_deletion_was_cut_short_is_gone(port: LocalPort, tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    port.create_pod(a_template(uid))
    port.pod_store.bind(port.pod_store.of_run("demo")[0], Binding("", "", ""))
    assert list(port.pods("demo")) == []


def test_a_pod_bound_to_a_node_that_never_was_is_lost(port: LocalPort, tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    port.create_pod(a_template(uid))
    stored = port.pod_store.of_run("demo")[0]
    memory = tmp_path / "memory" / "demo-0-1"
    memory.mkdir(parents=True)
    port.pod_store.bind(stored, Binding("node-9", "life", str(memory)))
    port.pod_store.write_status(stored.folder, PodStatus(PodPhase.RUNNING, ready=True, restarts=2))
    pod = only(port.pods("demo"))
    assert (pod.phase, pod.reason, pod.ready, pod.restarts) == (PodPhase.FAILED, "NodeLost", False, 2)
    assert not memory.exists()


def test_status_is_written_once_for_a_version(port: LocalPort, tmp_path: Path) -> None:
    a_run(tmp_path)
    run = port.get_run("demo")
    assert run is not None
    port.write_status("demo", {"a": 1}, run.resource_version)
    with pytest.raises(Conflict):
        port.write_status("demo", {"a": 2}, run.resource_version)
    with pytest.raises(Conflict):
        port.write_status("nobody", {}, "1.1")


def test_the_checkpoint_that_the_status_names_is_known_also_to_who_has_no_record_of_it(
    port: LocalPort, tmp_path: Path
) -> None:
    uid = a_run(tmp_path)
    assert port.saved_checkpoint("nobody") is None
    assert port.saved_checkpoint(uid) is None
    run = port.get_run("demo")
    assert run is not None
    status = {"checkpoint": {"durable": {"step": 10, "epoch": 2, "manifest": "step-00000010.e0002"}}}
    port.write_status("demo", status, run.resource_version)
    assert port.saved_checkpoint(uid) == DurableCheckpoint("step-00000010.e0002", 2, 10)


def test_what_membership_knows_is_read_from_it(port: LocalPort) -> None:
    with a_membership(port, 200, wire.to_json(VIEW)):
        assert port.membership("uid") == VIEW


@pytest.mark.parametrize(("status", "body"), [(404, {"error": "RunGone"}), (200, {"epoch": "x"}), (200, [])])
def test_membership_that_does_not_know_the_run_or_talks_nonsense_is_none(
    port: LocalPort, status: int, body: Any
) -> None:
    with a_membership(port, status, body):
        assert port.membership("uid") is None


def test_membership_that_is_away_is_none(port: LocalPort) -> None:
    assert port.membership("uid") is None  # never started
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        files.replace(port.layout.membership, {"host": "127.0.0.1", "port": closed.getsockname()[1]})
        assert port.membership("uid") is None  # refuses


def test_membership_that_is_stopped_is_none_within_the_timeout(port: LocalPort) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the kernel accepts; nobody answers
        files.replace(port.layout.membership, {"host": "127.0.0.1", "port": silent.getsockname()[1]})
        started = time.monotonic()
        assert port.membership("uid") is None
        assert time.monotonic() - started < 2


def _returns_early(port: LocalPort) -> bool:
    started = time.monotonic()
    port.wait_for_change(0.2)
    return time.monotonic() - started < 0.19


def test_waiting_ends_early_for_a_change_of_run_record_pod_or_node_and_not_for_status_or_events(
    port: LocalPort, tmp_path: Path
) -> None:
    uid = a_run(tmp_path)
    assert _returns_early(port)
    assert not _returns_early(port)
    changes = [
        lambda: port.store.apply(a_manifest(task="sft"), 2.0),
        lambda: port.create(an_epoch(uid, 1)),
        lambda: port.create_pod(a_template(uid)),
        lambda: port.pod_store.write_status(
            port.pod_store.of_run("demo")[0].folder, PodStatus(PodPhase.RUNNING)
        ),
        lambda: port.node_store.enter("node-0"),
        lambda: port.delete_run("demo"),
    ]
    for change in changes:
        change()
        assert _returns_early(port)
        run = port.store.run("demo")
        if run is not None:
            port.write_status("demo", {"seen": True}, run.resource_version)
            port.emit("demo", EventRecord(1.0, "Normal", "Planned", ""))
        assert not _returns_early(port)


def test_a_change_between_two_waits_is_not_missed(port: LocalPort, tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    port.wait_for_change(0.1)
    port.create_pod(a_template(uid))  # while the controller was at work
    assert _returns_early(port)
