"""The controller's program: its health pages, the check of its rights, and that it starts and stops as it should."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.operator.fake_api import Answered, FakeApiServer
from tests.operator.kube_builders import SETTINGS, SPACE, a_node_object, a_run_object

from trainingrun.cluster.kubernetes import health, logs, permissions
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.freshness import Freshness

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        server.put("trainingruns", a_run_object())
        server.put("nodes", a_node_object())
        yield server


@dataclass
class Loop:
    beaten_at: float = 100.0
    known_runs: int = 3


def read(port: int, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def a_health(now: float = 100.0) -> health.Health:
    return health.Health(Loop(), Freshness(), SETTINGS, lambda: now)


def test_it_is_healthy_but_not_ready_until_it_works() -> None:
    found = a_health()
    assert found.not_healthy() == ""
    assert found.not_ready().startswith("it has not started to work yet")
    found.started.set()
    assert found.not_ready() == ""


def test_a_control_loop_that_hangs_is_neither_ready_nor_healthy() -> None:
    found = a_health(100.0 + SETTINGS.heartbeat_seconds + 1)
    found.started.set()
    assert found.not_ready() == found.not_healthy() == "the control loop was not seen at work for 121 s"


def test_the_pages_say_why() -> None:
    found = a_health()
    server = health.serve_health(found, 0, "127.0.0.1")
    assert read(server.port, "/healthz") == (200, "ok\n")
    assert read(server.port, "/readyz")[0] == 503
    found.started.set()
    assert read(server.port, "/readyz?verbose") == (200, "ok\n")
    assert read(server.port, "/other")[0] == 404
    server.close()


def test_metrics_can_be_scraped() -> None:
    server = health.serve_metrics(a_health(103.0), 0, "127.0.0.1")
    status, text = read(server.port, "/metrics")
    server.close()
    assert status == 200
    assert "trainingrun_controller_runs 3.0" in text
    assert "trainingrun_controller_loop_silent_seconds 3.0" in text
    assert 'trainingrun_controller_watch_behind_seconds{resource="pods"} 0.0' in text


def test_an_account_with_all_rights_is_accepted(server: FakeApiServer) -> None:
    permissions.require(Api.at(server.url), (SPACE,))


def test_missing_rights_are_all_named(server: FakeApiServer) -> None:
    server.forbidden = {
        ("watch", "pods"),
        ("create", "pods"),
        ("update", "trainingruns/status"),
        ("list", "nodes"),
    }
    with pytest.raises(permissions.NotAllowed) as error:
        permissions.require(Api.at(server.url), (SPACE, "team-b"))
    assert str(error.value).splitlines()[1:-1] == [
        "  update trainingruns/status.trainingrun.dev in namespace team-a",
        "  update trainingruns/status.trainingrun.dev in namespace team-b",
        "  watch, create pods in namespace team-a",
        "  watch, create pods in namespace team-b",
        "  list nodes",
    ]


def test_a_line_of_the_log_can_be_json() -> None:
    record = logging.LogRecord("trainingrun", logging.INFO, "x.py", 1, "run %s", ("a/b",), None)
    line = json.loads(logs.JsonLines().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("INFO", "trainingrun", "run a/b")


# the whole program


@dataclass
class Program:
    process: subprocess.Popen[str]
    port: int

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                if read(self.port, "/readyz")[0] == 200:
                    return
            except urllib.error.URLError:
                pass
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)


def start(server: FakeApiServer, folder: Path) -> Program:
    kubeconfig = folder / "config"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        "users: [{name: u, user: {token: secret}}]\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "operator"), str(ROOT / "trainer_image"))),
        "KUBECONFIG": str(kubeconfig),
        "TRAININGRUN_OPERATOR_NAMESPACE": "system",
        "TRAININGRUN_TRAINER_IMAGE": "registry.example/trainer:1",
        "TRAININGRUN_MEMBERSHIP_NAME": "tr-membership",
        "TRAININGRUN_WATCH_NAMESPACES": SPACE,
        "TRAININGRUN_HEALTH_PORT": str(port),
        "TRAININGRUN_METRICS_PORT": "0",
        "TRAININGRUN_LOG_FORMAT": "json",
    }
    command = [sys.executable, "-m", "trainingrun.cluster.kubernetes.controller_main"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return Program(process, port)


def test_it_works_on_runs_and_ends_soon_after_it_is_asked_to(server: FakeApiServer, tmp_path: Path) -> None:
    program = start(server, tmp_path)
    try:
        program.wait_ready()
        deadline = time.monotonic() + 20
        while not (server.get("trainingruns", SPACE, "demo") or {}).get("status"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        asked_at = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        _, log = program.process.communicate(timeout=20)
    finally:
        program.process.kill()
    assert time.monotonic() - asked_at < 5.0
    assert program.process.returncode == 0, log
    assert json.loads(log.splitlines()[0])["message"] == "looking after team-a"


def test_it_ends_with_a_clear_message_when_rights_are_missing(server: FakeApiServer, tmp_path: Path) -> None:
    server.forbidden = {("watch", "pods")}
    program = start(server, tmp_path)
    _, log = program.process.communicate(timeout=30)
    assert program.process.returncode == 2
    assert "watch pods in namespace team-a" in log
    assert "Traceback" not in log


def test_it_ends_with_a_clear_message_when_the_kind_is_not_installed(
    server: FakeApiServer, tmp_path: Path
) -> None:
    server.refusals["GET", "trainingruns"] = Answered(404, "the server could not find the requested resource")
    program = start(server, tmp_path)
    _, log = program.process.communicate(timeout=30)
    assert program.process.returncode == 5
    assert "install the CustomResourceDefinition" in log


def test_a_setting_that_is_missing_is_named() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRAININGRUN_")}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT / "operator"), str(ROOT / "trainer_image")))
    command = [sys.executable, "-m", "trainingrun.cluster.kubernetes.controller_main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "TRAININGRUN_OPERATOR_NAMESPACE is not set" in done.stderr
