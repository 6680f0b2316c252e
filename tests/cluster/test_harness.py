"""The test cluster is a real one, and its faults are real: what every other cluster test takes for granted."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest
from tests.cluster.harness import Cluster, HarnessError
from tests.cluster.harness.api import ApiError
from tests.cluster.pods import create, log, restricted_pod, running

pytestmark = pytest.mark.cluster

SLEEP = ["sleep", "600"]
MEMORY = ("/memory", {"emptyDir": {"medium": "Memory"}})


def test_all_nodes_are_ready_and_every_daemon_runs(cluster: Cluster) -> None:
    assert cluster.nodes == ("node1", "node2", "node3")
    assert set(cluster.status().values()) == {"running", "ready"}


def test_a_restricted_pod_runs_the_checkout_and_its_log_is_readable(cluster: Cluster, namespace: str) -> None:
    code = "import os, trainer.agent, trainingrun.protocol; print('user', os.getuid())"
    create(cluster, namespace, "pods", restricted_pod("a", "node1", ["python", "-c", code]))
    cluster.wait_until("the pod's line", lambda: "user 65532" in log(cluster, namespace, "a"), 60)


def test_a_pod_that_is_not_restricted_is_refused(cluster: Cluster, namespace: str) -> None:
    pod = restricted_pod("a", "node1", SLEEP)
    del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(ApiError, match="violates PodSecurity"):
        create(cluster, namespace, "pods", pod)


def test_a_service_is_reached_by_its_name_from_another_node(cluster: Cluster, namespace: str) -> None:
    server = ["python", "-m", "http.server", "8000", "--directory", "/opt/trainingrun/src"]
    create(cluster, namespace, "pods", restricted_pod("web", "node1", server))
    ports = [{"port": 80, "targetPort": 8000}]
    create(
        cluster,
        namespace,
        "services",
        {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}},
    )
    cluster.wait_until("the server runs", lambda: running(cluster, namespace, "web"), 60)
    fetch = f"import urllib.request as r; print('status', r.urlopen('http://web.{namespace}.svc', timeout=3).status)"
    client = ["bash", "-c", f'until python3 -c "{fetch}"; do sleep 0.5; done']
    create(cluster, namespace, "pods", restricted_pod("client", "node2", client))
    cluster.wait_until("an answer", lambda: "status 200" in log(cluster, namespace, "client"), 60)


def test_a_projected_token_has_its_own_audience(cluster: Cluster, namespace: str) -> None:
    token = {"serviceAccountToken": {"audience": "somebody", "path": "token", "expirationSeconds": 3600}}
    volume = ("/var/run/tokens", {"projected": {"sources": [token]}})
    command = ["bash", "-c", "cat /var/run/tokens/token; echo; sleep 600"]
    create(cluster, namespace, "pods", restricted_pod("a", "node1", command, [volume]))
    cluster.wait_until("the token", lambda: log(cluster, namespace, "a").count(".") == 2, 60)
    text = log(cluster, namespace, "a").strip()
    payload = text.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == ["somebody"]
    assert claims["kubernetes.io"]["pod"]["name"] == "a"
    review = {"spec": {"token": text, "audiences": ["somebody"]}}
    answer = cluster.api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer["status"]["authenticated"]


def test_a_folder_of_the_host_is_the_same_volume_on_every_node(cluster: Cluster, namespace: str) -> None:
    folder = cluster.shared_dir / namespace
    folder.mkdir()
    folder.chmod(0o777)
    volume = {
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": "shared"},
        },
    }
    cluster.api.request("POST", "/api/v1/persistentvolumes", volume)
    claim = {
        "metadata": {"name": "shared"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    create(cluster, namespace, "persistentvolumeclaims", claim)
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/shared"
    cluster.wait_until(
        "the claim is bound", lambda: cluster.api.get(path)["status"].get("phase") == "Bound", 60
    )
    mount = ("/mnt/shared", {"persistentVolumeClaim": {"claimName": "shared"}})
    write = ["bash", "-c", "echo hello > /mnt/shared/word; sleep 600"]
    read = ["bash", "-c", "until cat /mnt/shared/word; do sleep 0.2; done; sleep 600"]
    create(cluster, namespace, "pods", restricted_pod("writer", "node1", write, [mount]))
    create(cluster, namespace, "pods", restricted_pod("reader", "node2", read, [mount]))
    cluster.wait_until("the word", lambda: "hello" in log(cluster, namespace, "reader"), 60)
    cluster.api.request("DELETE", f"/api/v1/persistentvolumes/{namespace}")


def test_a_process_of_a_pod_is_found_killed_and_restarted(cluster: Cluster, namespace: str) -> None:
    create(
        cluster,
        namespace,
        "pods",
        restricted_pod("a", "node3", ["python", "-c", "import time; time.sleep(600)"]),
    )
    cluster.wait_until("the pod runs", lambda: running(cluster, namespace, "a"), 60)
    (process,) = cluster.processes(namespace, "a")
    assert (process.inner_pid, process.container, process.command[0]) == (1, "main", "python")
    assert process.environment["HOSTNAME"] == "a"
    with pytest.raises(HarnessError, match="no process"):
        cluster.kill_in_pod(namespace, "a", "no such program")
    assert cluster.kill_in_pod(namespace, "a", "time.sleep") == [process.pid]
    cluster.wait_until("a restart", lambda: running(cluster, namespace, "a", restarts=1), 60)


def test_a_partitioned_node_becomes_not_ready_and_heals(cluster: Cluster, namespace: str) -> None:
    create(cluster, namespace, "pods", restricted_pod("a", "node3", SLEEP))
    cluster.wait_until("the pod runs", lambda: running(cluster, namespace, "a"), 60)
    before = cluster.processes(namespace, "a")
    cluster.partition("node3")
    try:
        cluster.wait_until("node3 is lost", lambda: cluster.status()["node3"] == "not ready", 40)
        found = cluster.api.get("/api/v1/nodes/node3")
        assert {"node.kubernetes.io/unreachable"} == {taint["key"] for taint in found["spec"]["taints"]}
        assert cluster.processes(namespace, "a") == before  # and its pods run on
        assert cluster.status()["node1"] == "ready"
    finally:
        cluster.heal("node3")
    cluster.wait_until("node3 is back", lambda: cluster.status()["node3"] == "ready", 60)
    assert running(cluster, namespace, "a")


def test_a_node_without_power_loses_its_memory_and_comes_back(cluster: Cluster, namespace: str) -> None:
    command = ["bash", "-c", "ls -l /memory; touch /memory/file; exec sleep 600"]
    create(cluster, namespace, "pods", restricted_pod("a", "node2", command, [MEMORY]))
    cluster.wait_until("the pod runs", lambda: running(cluster, namespace, "a"), 60)
    assert cluster.processes(namespace, "a")
    cluster.power_off("node2")
    try:
        assert cluster.processes(namespace, "a") == []  # all gone when the call returns
        with pytest.raises(HarnessError, match="off already"):
            cluster.power_off("node2")
        cluster.wait_until("node2 is lost", lambda: cluster.status()["node2"] == "not ready", 40)
    finally:
        cluster.power_on("node2")
    cluster.wait_until("node2 is back", lambda: cluster.status()["node2"] == "ready", 60)
    cluster.wait_until("the pod runs again", lambda: running(cluster, namespace, "a", restarts=1), 60)
    cluster.wait_until("its log", lambda: log(cluster, namespace, "a"), 60)
    assert "file" not in log(cluster, namespace, "a")


def test_a_paused_api_server_does_not_answer_and_a_killed_one_refuses(cluster: Cluster) -> None:
    cluster.pause_apiserver()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            # Not through the harness's own client: what counts is that the connection opens and stays silent.
            subprocess.run(["curl", "-sk", f"{cluster.api_url}/readyz"], timeout=2, check=False)
    finally:
        cluster.resume_apiserver()
    cluster.wait_until("it answers again", cluster.api.ready, 20)
    cluster.stop_apiserver()
    try:
        assert not cluster.api.ready()
    finally:
        cluster.start_apiserver()
    cluster.heal_all()
    assert set(cluster.status().values()) == {"running", "ready"}


def test_a_fault_proxy_passes_on_what_a_token_may_do(cluster: Cluster, namespace: str) -> None:
    token = cluster.token(namespace, "default")
    with cluster.fault_proxy(in_cluster=True) as proxy:
        path = f"{proxy.url}/api/v1/namespaces/{namespace}/pods"
        ask = ["curl", "-s", "--cacert", str(cluster.ca), "-H", f"Authorization: Bearer {token}", path]
        assert json.loads(cluster.exec_host("node1", *ask))["code"] == 403
        proxy.answer(429, path="/pods$")
        assert json.loads(cluster.exec_host("node1", *ask))["code"] == 429


def test_all_that_runs_is_known_as_to_be_removed(cluster: Cluster) -> None:
    left = cluster.leftovers()
    assert {"processes", "network namespaces", "mounts", "cgroups"} <= set(left)
    assert len(left["network namespaces"]) == 1 + len(cluster.nodes)
