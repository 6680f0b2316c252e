"""The membership service of a cluster as a program, with an API server in memory: start, trust, health, stop."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operator.fake_api import FakeApiServer

ROOT = Path(__file__).resolve().parents[2]
CA = ("secrets", "operator", "tr-membership-ca")


class Program:
    def __init__(self, folder: Path, url: str) -> None:
        self.port, self.health_port = free_port(), free_port()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "x",
                    "clusters": [{"name": "x", "cluster": {"server": url}}],
                    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                    "users": [{"name": "x", "user": {}}],
                }
            )
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([f"{ROOT}/operator", os.environ.get("PYTHONPATH", "")]),
            "KUBECONFIG": str(kubeconfig),
            "TRAININGRUN_OPERATOR_NAMESPACE": "operator",
            "TRAININGRUN_TRAINER_IMAGE": "trainer",
            "TRAININGRUN_MEMBERSHIP_NAME": "tr-membership",
            "TRAININGRUN_MEMBERSHIP_PORT": str(self.port),
            "TRAININGRUN_HEALTH_PORT": str(self.health_port),
        }
        self.log = folder / "log"
        command = [sys.executable, "-m", "trainingrun.cluster.kubernetes.membership_main"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    def health(self, page: str) -> int:
        with contextlib.suppress(OSError):
            return ask(f"http://127.0.0.1:{self.health_port}/{page}")[0]
        return 0

    def until(self, what: Callable[[], object], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def stop(self) -> float:
        """Seconds from SIGTERM to the end, which must be a good one."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0, self.log.read_text()
        return time.monotonic() - began


@contextlib.contextmanager
def a_program(folder: Path, url: str) -> Iterator[Program]:
    program = Program(folder, url)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def ask(url: str, trusted: str = "") -> tuple[int, str]:
    context = ssl.create_default_context(cadata=trusted) if trusted else None
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


def test_it_waits_for_the_api_server_then_serves_under_its_own_authority_and_stops_at_once(
    tmp_path: Path, api: FakeApiServer
) -> None:
    api.away = True
    with a_program(tmp_path, api.url) as program:
        program.until(lambda: program.health("healthz") == 200)
        assert program.health("readyz") == 503
        program.until(lambda: "cannot be read now" in program.log.read_text())
        api.away = False
        program.until(lambda: program.health("readyz") == 200)
        published = api.get("configmaps", "operator", "tr-membership-ca")
        assert published is not None
        assert list(published["data"]) == ["ca.crt"]
        trusted = published["data"]["ca.crt"]
        assert ask(f"https://localhost:{program.port}/healthz", trusted)[0] == 200
        status, said = ask(f"https://localhost:{program.port}/v1/runs/uid", trusted)
        assert (status, json.loads(said)["error"]) == (401, "Unauthenticated")
        assert program.stop() < 3


def test_its_authority_outlives_it(tmp_path: Path, api: FakeApiServer) -> None:
    for start in ("first", "second"):
        folder = tmp_path / start
        folder.mkdir()
        with a_program(folder, api.url) as program:
            program.until(lambda program=program: program.health("readyz") == 200)
            if start == "first":
                trusted = base64.b64decode(api.objects[CA]["data"]["ca.crt"]).decode()
            assert ask(f"https://localhost:{program.port}/healthz", trusted)[0] == 200
            assert program.stop() < 3
    assert api.asked("POST", "secrets") == 1


def test_a_secret_of_somebody_else_is_one_clear_error(tmp_path: Path, api: FakeApiServer) -> None:
    api.put("secrets", {"metadata": {"name": CA[2], "namespace": CA[1]}, "data": {"password": "eA=="}})
    with a_program(tmp_path, api.url) as program:
        assert program.process.wait(20) == 2
        assert program.log.read_text().startswith(
            "error: Secret operator/tr-membership-ca: has no ca.crt and no ca.key"
        )
    assert api.objects[CA]["data"] == {"password": "eA=="}


def test_a_missing_setting_is_one_clear_error() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRAININGRUN_")}
    command = [sys.executable, "-m", "trainingrun.cluster.kubernetes.membership_main"]
    path = os.pathsep.join([f"{ROOT}/operator", os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        command, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: TRAININGRUN_OPERATOR_NAMESPACE is not set")
    assert "Traceback" not in ended.stderr


def test_it_stops_in_time_while_an_api_server_keeps_it_waiting(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # takes connections and never answers
        a_program(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}") as program,
    ):
        program.until(lambda: program.health("healthz") == 200)
        silent.settimeout(10)
        silent.accept()
        assert program.stop() < 3
