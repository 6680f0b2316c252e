"""The chart on a real cluster: installed, upgraded and taken away under a run that trains, and installed for a few
namespaces only. Its rights are tried in test_chart_rights.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness import Cluster
from tests.cluster.installation import (
    CHART,
    CONTROLLER,
    MEMBERSHIP,
    NAMESPACE,
    RELEASE,
    Installation,
    is_ready,
)
from tests.scenarios import lines
from tests.scenarios.cluster_line import ClusterLine, ClusterLines
from tests.scenarios.line import Moment
from tests.scenarios.manifests import small_manifest
from tools.generate_chart import IMAGES

from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.settings import KubeSettings

pytestmark = pytest.mark.cluster

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingruns.trainingrun.dev"
OWN = f"/api/v1/namespaces/{NAMESPACE}"
LONG = {"steps": 100_000}  # nobody waits for its end


@pytest.fixture(scope="module")
def installation(cluster: Cluster) -> Iterator[Installation]:
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    made = Installation(cluster, Api.connect(), node=cluster.nodes[-1])
    made.install()
    yield made
    made.install()
    if before is None:
        del os.environ["KUBECONFIG"]
    else:
        os.environ["KUBECONFIG"] = before


@pytest.fixture
def line(installation: Installation, folder: Path) -> Iterator[ClusterLine]:
    """A line of two nodes, whose namespace is gone afterwards."""
    cluster = installation.cluster
    settings = KubeSettings(operator_namespace="-", trainer_image="-", membership_name="-", cache_seconds=0.0)
    port = KubePort(installation.api, settings)
    made = ClusterLines(cluster, installation, port, cluster.nodes[:-1])
    lines.choose(made)
    before = os.umask(0)  # what a test writes must be readable and writable for the user of the pods
    opened = made.open(2, None)
    assert isinstance(opened, ClusterLine)
    try:
        with opened:
            try:
                yield opened
            finally:
                made.installation.install()
        assert opened.leaks() == []
    finally:
        os.umask(before)
        lines.choose(lines.LocalLines())


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Path]:
    """Seen by the pods under the claim of their namespace."""
    path = cluster.shared_dir / f"chart-{uuid.uuid4().hex[:8]}"
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def operator_pods(installation: Installation) -> list[dict[str, Any]]:
    return [*installation.pods(CONTROLLER), *installation.pods(MEMBERSHIP)]


def uids(items: list[dict[str, Any]]) -> set[str]:
    return {item["metadata"]["uid"] for item in items}


def authority(api: Api) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """(uid, resource version, data) of the Secret, and the data of the ConfigMap."""
    secret = api.get(f"{OWN}/secrets/{MEMBERSHIP}-ca") or {}
    published = api.get(f"{OWN}/configmaps/{MEMBERSHIP}-ca") or {}
    about = secret["metadata"]
    return about["uid"], about["resourceVersion"], secret["data"], published["data"]


def same_pods_and_epoch(line: ClusterLine, before: Moment, now: Moment) -> None:
    old, new = ({(pod.uid, pod.terminating) for pod in moment.pods} for moment in (before, now))
    if (new, now.epoch) != (old, before.epoch):
        line.fail(f"pods or epoch changed, before: {before}", now)


def trains_on(line: ClusterLine, steps: int = 20) -> Callable[[object], bool]:
    """A condition: so many more steps than now are in the ranks' own logs, whatever the operator knows."""
    began = newest_step(line)
    return lambda _: newest_step(line) >= began + steps


def newest_step(line: ClusterLine) -> int:
    """As the ranks log it. The last line may be in the making."""
    logs = [path.read_text() for path in line.files("metrics-e*.jsonl")]
    rows = [json.loads(row) for text in logs for row in text.splitlines(keepends=True) if row.endswith("\n")]
    return max((row["step"] for row in rows if "loss" in row), default=0)


def test_a_run_does_not_notice_an_upgrade_an_uninstall_and_a_new_install(
    installation: Installation, line: ClusterLine, folder: Path
) -> None:
    api = installation.api
    line.apply(small_manifest(folder, training__duration=LONG))
    line.wait_for_step(10)
    begun = line.wait_for(lambda now: now if now.members == 2 else None, "two members")
    made = authority(api)
    operator = uids(operator_pods(installation))

    annotations = {"podAnnotations": {"test": uuid.uuid4().hex}}
    installation.install({"controller": annotations, "membership": annotations})
    assert not uids(operator_pods(installation)) & operator
    assert authority(api) == made
    upgraded = line.wait_for_step(line.moment().step + 10)
    same_pods_and_epoch(line, begun, upgraded)

    installation.uninstall()
    line.wait_for(lambda _: not operator_pods(installation), "no pod of the operator any more")
    line.wait_for(trains_on(line), "more steps without an operator")
    same_pods_and_epoch(line, begun, line.moment())
    assert authority(api) == made
    assert api.get(DEFINITION) is not None
    assert ours(api) == []

    installation.install()
    same_pods_and_epoch(line, begun, line.wait_for_step(line.moment().step + 10))
    assert authority(api) == made
    line.wait_for(lambda now: now.status["progress"]["step"] > upgraded.step, "a newer step in the status")


def ours(api: Api) -> list[str]:
    """Objects that the release made; the definition is not among them."""
    label = f"app.kubernetes.io/managed-by=Helm,app.kubernetes.io/instance={RELEASE}"
    paths = (
        *(f"{OWN}/{kind}" for kind in ("serviceaccounts", "services")),
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
        *(f"/apis/rbac.authorization.k8s.io/v1/{kind}" for kind in ("clusterroles", "clusterrolebindings")),
        *(f"/apis/rbac.authorization.k8s.io/v1/{kind}" for kind in ("roles", "rolebindings")),
    )
    return [f"{path}/{item['metadata']['name']}" for path in paths for item in api.list(path, label)]


@pytest.fixture
def elsewhere(installation: Installation) -> Iterator[str]:
    """A namespace of the restricted level, for a second release."""
    api, name = installation.api, f"chart-{uuid.uuid4().hex[:6]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    yield name
    installation.helm("uninstall", "second", "--namespace", name, "--ignore-not-found", "--wait")
    api.delete(f"/api/v1/namespaces/{name}")


def test_a_release_for_one_namespace_works_beside_the_other(
    installation: Installation, namespace: str, elsewhere: str
) -> None:
    values = {
        "image.repository": "localhost/trainingrun-operator",
        "image.tag": "test",
        "trainer.image.repository": "localhost/trainingrun-trainer",
        "crds.enabled": "false",
        "rbac.aggregateRoles": "false",
        "networkPolicy.enabled": "true",
        "watchNamespaces": f"{{{namespace}}}",
    }
    settings = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    installation.helm(
        *("install", "second", str(CHART), "--namespace", elsewhere, "--wait", "--timeout", "90s"), *settings
    )
    pods = installation.api.list(f"/api/v1/namespaces/{elsewhere}/pods")
    assert [is_ready(pod) for pod in pods] == [True, True]
    controller = next(pod["metadata"]["name"] for pod in pods if "controller" in pod["metadata"]["name"])
    log = installation.api.text(f"/api/v1/namespaces/{elsewhere}/pods/{controller}/log")
    assert f"looking after {namespace}" in log
    roles = installation.api.list(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles")
    assert {role["metadata"]["name"] for role in roles} == {"second-controller", "second-membership"}


def test_a_release_that_is_not_told_its_definition_exists_is_refused_and_changes_nothing(
    installation: Installation, elsewhere: str
) -> None:
    before = installation.api.get(DEFINITION)
    with pytest.raises(Exception, match="invalid ownership metadata"):
        installation.helm("install", "second", str(CHART), "--namespace", elsewhere, *IMAGES)
    assert installation.api.get(DEFINITION) == before
    assert installation.api.list(f"/api/v1/namespaces/{elsewhere}/pods") == []
