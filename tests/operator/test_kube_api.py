"""The API client against a server in memory: verbs, errors, paging, and that no call waits for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.fake_api import Answered, FakeApiServer

from trainingrun.cluster.kubernetes.api import PAGE, Api, NoAccess
from trainingrun.ports import Conflict, Refused, Unavailable

MAPS = "/api/v1/namespaces/a/configmaps"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


@pytest.fixture
def api(server: FakeApiServer) -> Api:
    return Api.at(server.url, timeout_seconds=2.0)


def a_map(name: str = "x", **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "a", "labels": {"kind": "test"}}, "data": data}


def test_what_is_not_there_is_none(api: Api) -> None:
    assert api.get(f"{MAPS}/x") is None


def test_what_was_created_can_be_read(api: Api) -> None:
    assert api.create(MAPS, a_map(key="1"))["metadata"]["uid"]
    found = api.get(f"{MAPS}/x")
    assert found is not None
    assert found["data"] == {"key": "1"}


def test_a_name_that_is_taken_is_a_conflict(api: Api) -> None:
    api.create(MAPS, a_map())
    with pytest.raises(Conflict, match="already exists"):
        api.create(MAPS, a_map())


def test_a_race_for_a_quota_is_no_taken_name(api: Api, server: FakeApiServer) -> None:
    server.refusals["POST", "configmaps"] = Answered(409, "the quota has been modified", "Conflict")
    with pytest.raises(Unavailable, match="quota"):
        api.create(MAPS, a_map())


def test_replacing_an_older_version_is_a_conflict(api: Api, server: FakeApiServer) -> None:
    old = api.create(MAPS, a_map(key="1"))
    server.put("configmaps", a_map(key="2"))
    with pytest.raises(Conflict, match="modified"):
        api.replace(f"{MAPS}/x", old)


def test_replacing_what_is_gone_is_refused_as_not_found(api: Api) -> None:
    with pytest.raises(Refused) as refused:
        api.replace(f"{MAPS}/x", a_map())
    assert refused.value.reason == "NotFound"


@pytest.mark.parametrize(("status", "reason"), [(400, "BadRequest"), (403, "Forbidden"), (422, "Invalid")])
def test_a_refusal_carries_the_servers_word_and_message(
    api: Api, server: FakeApiServer, status: int, reason: str
) -> None:
    server.refusals["POST", "configmaps"] = Answered(status, "exceeded quota: q", reason)
    with pytest.raises(Refused, match="exceeded quota: q") as refused:
        api.create(MAPS, a_map())
    assert refused.value.reason == reason


@pytest.mark.parametrize("status", [401, 408, 410, 429, 500, 503, 504])
def test_what_may_pass_is_unavailable(api: Api, server: FakeApiServer, status: int) -> None:
    server.refusals["GET", "configmaps"] = Answered(status, "etcdserver: timeout")
    with pytest.raises(Unavailable, match="etcdserver: timeout"):
        api.get(f"{MAPS}/x")


def test_a_call_is_made_once(api: Api, server: FakeApiServer) -> None:
    server.refusals["GET", "configmaps"] = Answered(429, "later")
    with pytest.raises(Unavailable):
        api.get(f"{MAPS}/x")
    assert server.asked("GET", "configmaps") == 1


def test_a_server_that_ends_connections_is_unavailable(api: Api, server: FakeApiServer) -> None:
    server.away = True
    with pytest.raises(Unavailable):
        api.list(MAPS)


def test_a_server_that_never_answers_is_unavailable_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            Api.at(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.3).get(f"{MAPS}/x")
        assert time.monotonic() - began < 2.0


def test_a_server_that_trickles_its_answer_is_unavailable_soon_after_the_timeout() -> None:
    stop = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not stop.wait(0.1):
                try:
                    connection.sendall(b" " * 10)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            Api.at(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.4).get(f"{MAPS}/x")
        stop.set()
        thread.join()
        assert time.monotonic() - began < 3.0


def test_a_list_has_all_pages_and_only_what_was_selected(api: Api, server: FakeApiServer) -> None:
    for number in range(PAGE + 3):
        server.put("configmaps", a_map(f"m{number:04d}"))
    server.put("configmaps", {"metadata": {"name": "other", "namespace": "a"}})
    assert len(api.list(MAPS, "kind=test")) == PAGE + 3
    assert server.asked("GET", "configmaps") == 2
    assert len(api.list(MAPS)) == PAGE + 4


def test_applying_creates_and_changes(api: Api) -> None:
    api.apply(f"{MAPS}/x", a_map(key="1"), "tester")
    api.apply(f"{MAPS}/x", a_map(key="2"), "tester")
    assert (api.get(f"{MAPS}/x") or {})["data"] == {"key": "2"}


def test_a_merge_patch_changes_only_what_it_names(api: Api) -> None:
    api.create(MAPS, a_map(one="1", two="2"))
    assert api.patch(f"{MAPS}/x", {"data": {"two": None, "three": "3"}})["data"] == {"one": "1", "three": "3"}


def test_deleting_what_is_gone_is_fine(api: Api) -> None:
    api.delete(f"{MAPS}/x", "uid-1")


def test_only_the_object_of_that_uid_is_deleted(api: Api, server: FakeApiServer) -> None:
    uid = api.create(MAPS, a_map())["metadata"]["uid"]
    api.delete(f"{MAPS}/x", "another")
    assert server.get("configmaps", "a", "x") is not None
    api.delete(f"{MAPS}/x", uid)
    assert server.get("configmaps", "a", "x") is None


def test_without_a_cluster_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NoAccess, match=r"(?s)no access to a Kubernetes cluster: .*hint: set KUBECONFIG"):
        Api.connect()


def test_a_context_that_the_kubeconfig_does_not_have_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: secret}}]\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert Api.connect().configuration.host == "http://127.0.0.1:1"
    with pytest.raises(NoAccess, match="other"):
        Api.connect(context="other")
