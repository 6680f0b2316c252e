"""The cluster goes without a trace, and comes after whatever happened to the last one. Restarts the cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.harness import Cluster, HarnessError, layout, lock

pytestmark = pytest.mark.cluster


def test_a_second_cluster_is_refused_and_told_who_has_the_machine(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as refused:
        Cluster(tmp_path / "other").up()
    assert str(cluster.layout.state) in str(refused.value)
    assert str(layout.CHECKOUT) in str(refused.value)
    assert not (tmp_path / "other").exists()
    assert cluster.is_up


def test_up_of_a_running_cluster_leaves_it_as_it_is(cluster: Cluster) -> None:
    before = cluster.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
    cluster.up()
    assert cluster.api.get("/api/v1/namespaces/kube-system")["metadata"]["uid"] == before


def test_down_leaves_nothing_on_the_machine(cluster: Cluster) -> None:
    cluster.down()
    assert cluster.leftovers() == {}
    assert lock.holder() is None
    assert not cluster.layout.state.exists()
    cluster.down()  # again, with nothing there


def test_up_cleans_what_a_killed_one_left(cluster: Cluster) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.cluster.harness",
        "--state",
        str(cluster.layout.state),
        "up",
        "--fresh",
    ]
    killed = subprocess.Popen(
        command, cwd=layout.CHECKOUT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    api_server = cluster.layout.pids / "kube-apiserver"
    cluster.wait_until("it is half started", api_server.exists, 60)
    time.sleep(1.0)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    assert cluster.leftovers()
    assert not cluster.is_up

    cluster.up()
    assert set(cluster.status().values()) == {"running", "ready"}
