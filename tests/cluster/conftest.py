"""Fixtures of every test on a real cluster."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.disturbances import tell
from tests.cluster.harness import Cluster
from tests.cluster.session import installed
from tests.scenarios import lines
from tests.scenarios.cluster_line import ClusterLines
from tests.scenarios.story import Told, undisturbed

ENV_KEEP = "TRAININGRUN_KEEP_CLUSTER"  # "1": a cluster that these tests started stays up


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The test cluster, healthy. One that runs already is used and stays; else it is started, and ended at the end."""
    made = Cluster()
    was_up = made.is_up
    made.up()
    made.heal_all()
    yield made
    if not was_up and not os.environ.get(ENV_KEEP):
        made.down()


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Iterator[ClusterLines]:
    """Our chart on the last node, the first ones for workers; scenarios then run on this cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        made = installed(cluster)
        before = os.umask(0)  # what a test writes must be readable and writable for the user of the pods
        lines.choose(made)
        yield made
        lines.choose(lines.LocalLines())
        os.umask(before)


@pytest.fixture(scope="module")
def shared_folder(cluster: Cluster) -> Path:
    """A folder of the test file's own that every node sees, and the pods may write to."""
    path = cluster.shared_dir / f"tests-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture
def folder(operator: ClusterLines, shared_folder: Path, request: pytest.FixtureRequest) -> Path:
    """Of one run."""
    lines.choose(operator)
    return shared_folder / re.sub(r"\W+", "-", request.node.name)[:40]


@pytest.fixture(scope="session")
def calm(operator: ClusterLines) -> Told:
    """The small run that nobody disturbs, on two nodes: the measure of all others."""
    lines.choose(operator)
    return tell(operator.cluster.shared_dir / f"calm-{uuid.uuid4().hex[:8]}", undisturbed).told


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A Kubernetes namespace of the test's own, at the restricted Pod Security level; removed without waiting."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    cluster.wait_until("the namespace's service account", lambda: cluster.api.get(account), 20)
    yield name
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")
