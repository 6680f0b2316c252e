"""Fixtures of every test on a real cluster."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from tests.cluster.harness import Cluster

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
