"""What the operator's two accounts may and may not do, asked of the real API server's authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.cluster.harness import Cluster
from tests.cluster.installation import CHART

from trainingrun.api.constants import GROUP

pytestmark = pytest.mark.cluster

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
WIDE, SCOPED = "rights-wide", "rights-scoped"  # releases
SYSTEM, TEAM, OTHER = "rights-system", "rights-team", "rights-other"  # namespaces
RUNS, CA = f"trainingruns.{GROUP}", "{release}-membership-ca"


@dataclass(frozen=True)
class Try:
    """`verb resource[.group][/subresource] [name]` in a namespace; "" for the whole cluster."""

    verb: str
    resource: str
    namespace: str = TEAM
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb}-{self.resource}-{self.name or 'any'}-{self.namespace or 'cluster'}"


CONTROLLER_MAY = (
    Try("list", RUNS),
    Try("update", f"{RUNS}/status"),
    Try("create", "pods"),
    Try("delete", "pods"),
    Try("create", "controllerrevisions.apps"),
    Try("get", "configmaps", SYSTEM, CA),
    Try("watch", "nodes", ""),
)
CONTROLLER_MAY_NOT = (
    *(Try(verb, RUNS) for verb in ("create", "update", "patch", "delete")),
    *(
        Try(verb, "secrets", where)
        for verb in ("get", "list", "create")
        for where in (TEAM, SYSTEM, "kube-system")
    ),
    Try("get", "secrets", SYSTEM, CA),
    *(Try(verb, "pods") for verb in ("update", "patch", "deletecollection")),
    *(Try("create", f"pods/{sub}") for sub in ("exec", "attach", "eviction", "binding")),
    Try("patch", "pods/status"),
    *(Try(verb, "nodes", "") for verb in ("create", "update", "patch", "delete")),
    *(Try(verb, "controllerrevisions.apps") for verb in ("update", "patch", "delete")),
    *(Try(verb, "configmaps") for verb in ("update", "delete", "list")),
    *(Try(verb, "persistentvolumeclaims") for verb in ("create", "delete", "patch")),
    *(Try(verb, "serviceaccounts") for verb in ("create", "impersonate")),
    Try("create", "serviceaccounts/token"),
    *(Try(verb, "roles.rbac.authorization.k8s.io") for verb in ("create", "bind", "escalate")),
    Try("create", "deployments.apps"),
    Try("patch", "customresourcedefinitions.apiextensions.k8s.io", ""),
    Try("create", "tokenreviews.authentication.k8s.io", ""),
    Try("delete", "namespaces", ""),
)
MEMBERSHIP_MAY = (
    Try("list", RUNS),
    Try("get", "pods"),
    Try("create", "controllerrevisions.apps"),
    Try("create", "tokenreviews.authentication.k8s.io", ""),
    Try("get", "secrets", SYSTEM, CA),
    Try("create", "secrets", SYSTEM),
    Try("patch", "configmaps", SYSTEM, CA),
)
MEMBERSHIP_MAY_NOT = (
    *(Try(verb, RUNS) for verb in ("create", "update", "patch", "delete", "watch")),
    Try("update", f"{RUNS}/status"),
    *(Try(verb, "pods") for verb in ("list", "create", "update", "patch", "delete")),
    *(Try(verb, "secrets", where) for verb in ("get", "list", "create") for where in (TEAM, "kube-system")),
    *(Try(verb, "secrets", SYSTEM, CA) for verb in ("update", "patch", "delete")),
    *(Try(verb, "secrets", SYSTEM) for verb in ("get", "list", "watch")),
    Try("get", "secrets", SYSTEM, "another"),
    Try("patch", "configmaps", SYSTEM, "another"),
    *(Try(verb, "configmaps") for verb in ("get", "create", "patch")),
    *(Try(verb, "controllerrevisions.apps") for verb in ("update", "patch", "delete")),
    *(Try(verb, "nodes", "") for verb in ("get", "list", "delete")),
    Try("create", "serviceaccounts/token"),
    Try("create", "events.events.k8s.io"),
)


@pytest.fixture(scope="module")
def releases(cluster: Cluster) -> Iterator[Cluster]:
    """Both ways of installing, without programs: no node has such a label."""
    nowhere = {"nodeSelector": {f"{GROUP}/test": "none"}}
    common = {
        "crds": {"enabled": False},
        "image": {"repository": "localhost/none"},
        "trainer": {"image": {"repository": "localhost/none"}},
        "controller": nowhere,
        "membership": nowhere,
    }
    try:
        for name in (SYSTEM, TEAM, OTHER):
            cluster.kubectl("create", "namespace", name)
        for release, namespaces in ((WIDE, []), (SCOPED, [TEAM])):
            values = json.dumps({**common, "watchNamespaces": namespaces})
            words = ("install", release, str(CHART), "--namespace", SYSTEM, "--values", "-")
            cluster.command(str(cluster.helm_path), *words, stdin=values)
        yield cluster
    finally:
        for release in (WIDE, SCOPED):
            cluster.helm("uninstall", release, "--namespace", SYSTEM, "--ignore-not-found")
        cluster.kubectl("delete", "namespace", SYSTEM, TEAM, OTHER, "--ignore-not-found", "--timeout=50s")


def may(cluster: Cluster, release: str, program: str, tried: Try) -> bool:
    return may_as(cluster, f"{SYSTEM}:{release}-{program}", release, tried)


def may_as(cluster: Cluster, account: str, release: str, tried: Try) -> bool:
    """`account`: namespace:name of a service account."""
    where, _, subresource = tried.resource.partition("/")
    resource, _, group = where.partition(".")
    attributes = {
        "verb": tried.verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": tried.namespace,
        "name": tried.name.format(release=release),
    }
    namespace = account.partition(":")[0]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "groups": groups,
            "resourceAttributes": attributes,
        },
    }
    answer = cluster.api.request("POST", REVIEWS, body)
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("release", [WIDE, SCOPED])
@pytest.mark.parametrize(
    ("program", "allowed", "forbidden"),
    [("controller", CONTROLLER_MAY, CONTROLLER_MAY_NOT), ("membership", MEMBERSHIP_MAY, MEMBERSHIP_MAY_NOT)],
    ids=["controller", "membership"],
)
def test_an_account_may_do_its_work_and_nothing_else(
    releases: Cluster, release: str, program: str, allowed: tuple[Try, ...], forbidden: tuple[Try, ...]
) -> None:
    missing = [str(tried) for tried in allowed if not may(releases, release, program, tried)]
    too_much = [str(tried) for tried in forbidden if may(releases, release, program, tried)]
    assert (missing, too_much) == ([], [])


@pytest.mark.parametrize("program", ["controller", "membership"])
def test_with_watched_namespaces_nothing_is_allowed_in_another_one(releases: Cluster, program: str) -> None:
    for tried in {"controller": CONTROLLER_MAY, "membership": MEMBERSHIP_MAY}[program]:
        if tried.namespace == TEAM:
            other = Try(tried.verb, tried.resource, OTHER)
            assert not may(releases, SCOPED, program, other), str(other)
            assert may(releases, WIDE, program, other), str(other)


def test_the_account_of_a_worker_may_do_nothing_of_it(releases: Cluster) -> None:
    """Workers run as an account of their own namespace, to which the chart gives nothing."""
    for tried in (*CONTROLLER_MAY, *MEMBERSHIP_MAY):
        assert not may_as(releases, f"{TEAM}:default", WIDE, tried), str(tried)
