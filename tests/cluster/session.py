"""The test cluster with our chart, once for a session of tests: operator on the last node, workers on the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.harness import Cluster
from tests.cluster.installation import Installation
from tests.scenarios.cluster_line import ClusterLines

from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.settings import KubeSettings

ENV_KEEP = "TRAININGRUN_KEEP_CLUSTER"  # "1": leave the cluster up, for the next session to find


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Up; and down again at the end, unless it was up before or is to be kept."""
    cluster = Cluster()
    before = cluster.is_up
    if before:
        cluster.heal_all()  # whoever used it before may have left a fault
    cluster.up()
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    try:
        yield cluster
    finally:
        if not before and not os.environ.get(ENV_KEEP):
            cluster.down()


@contextmanager
def cluster_lines() -> Iterator[ClusterLines]:
    with running_cluster() as cluster:
        yield installed(cluster)


def installed(cluster: Cluster) -> ClusterLines:
    """Our chart as it is in this checkout, on a cluster that is up and that KUBECONFIG names."""
    api = Api.connect()
    installation = Installation(cluster, api, node=cluster.nodes[-1])
    installation.install()
    settings = KubeSettings(operator_namespace="-", trainer_image="-", membership_name="-", cache_seconds=0.0)
    return ClusterLines(cluster, installation, KubePort(api, settings), cluster.nodes)
