"""Bad input that only the cluster can see: one condition with Kubernetes's own words, soon, and no storm of retries.

Manifests that the API server itself refuses are in test_crd. All cases happen at once; none of them trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.runs import SMALL, Health, Run, Space, a_space
from tests.scenarios.cluster_line import ClusterLines
from tests.scenarios.manifests import small_manifest

from trainingrun.api.constants import Label, Reason
from trainingrun.ports import Refused

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SOON_SECONDS = 10.0
SETTLED_SECONDS = 20.0  # so long at least the cases stand before retries are counted
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
WITHOUT_COST_CENTRE = "pods of this namespace need the label cost-centre"
WORKERS = 2


@dataclass(frozen=True)
class Case:
    """A change of the manifest, and what its condition says. `kubelet`: the container waits for one of these."""

    changes: Mapping[str, Any]
    reason: Reason
    says: tuple[str, ...]
    kubelet: tuple[str, ...] = ()
    where: str = "plain"


def container(**fields: Any) -> dict[str, Any]:
    return {"podTemplate__spec": {"containers": [{"name": "trainer", **fields}]}}


CASES = {
    "missing-claim": Case(
        {"output__uri": "pvc://later/models"},
        Reason.CLAIM_MISSING,
        ("spec.output.uri: there is no PersistentVolumeClaim later in the run's namespace: create it",),
    ),
    "lonely-claim": Case(
        {"checkpoint__location__uri": "pvc://alone/checkpoints"},
        Reason.CLAIM_NOT_SHARED,
        (
            "spec.checkpoint.location.uri: PersistentVolumeClaim alone is ReadWriteOnce",
            "spec.scale.maxNodes is 2: use a claim that is ReadWriteMany, or set spec.scale.maxNodes to 1",
        ),
    ),
    "unknown-image": Case(
        container(image="localhost/nowhere:1"),
        Reason.IMAGE_ERROR,
        ("unknown-image-", "localhost/nowhere:1"),
        kubelet=("ErrImagePull", "ImagePullBackOff"),
    ),
    "missing-secret": Case(
        container(envFrom=[{"secretRef": {"name": "nowhere"}}]),
        Reason.POD_CANNOT_START,
        ("missing-secret-0-0: CreateContainerConfigError", 'secret "nowhere" not found'),
        kubelet=("CreateContainerConfigError",),
    ),
    "unknown-account": Case(
        {"podTemplate__spec": {"serviceAccountName": "nobody"}},
        Reason.POD_REFUSED,
        ("the API server refuses a pod for seat 0: ", 'serviceaccount "nobody" not found'),
    ),
    "invalid-volume": Case(
        {"podTemplate__spec": {"volumes": [{"name": "data", "csi": {"readOnly": True}}]}},
        Reason.POD_REFUSED,
        ("the API server refuses a pod for seat 0: ", "csi.driver: Required value"),
    ),
    "policy": Case({}, Reason.POD_REFUSED, (WITHOUT_COST_CENTRE,), where="policy"),
    "limit": Case(
        {},
        Reason.POD_REFUSED,
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi",),
        where="limits",
    ),
}
NO_CONFIG_MAP = {
    "podTemplate__spec": {
        "volumes": [{"name": "data", "configMap": {"name": "nowhere"}}],
        "containers": [{"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    }
}
REFUSED = [name for name, case in CASES.items() if case.reason is Reason.POD_REFUSED]


@dataclass(frozen=True)
class Tried:
    """All cases, applied at the same time."""

    runs: Mapping[str, Run]
    health: Health
    folder: Path

    def space(self, name: str) -> Space:
        return self.runs[name].space


@pytest.fixture(scope="module")
def tried(operator: ClusterLines, shared_folder: Path) -> Iterator[Tried]:
    with ExitStack() as stack:
        spaces = {where: stack.enter_context(a_space(operator)) for where in ("plain", "limits", "policy")}
        make_claim(spaces["plain"], "alone", "ReadWriteOnce", shared_folder)
        limit_memory(spaces["limits"])
        stack.callback(remove_policy, spaces["policy"])
        make_policy(spaces["policy"])
        health = Health(operator.installation)
        runs = {
            name: spaces[case.where].apply(
                small_manifest(shared_folder, name, resources__perNode=SMALL, **case.changes)
            )
            for name, case in CASES.items()
        }
        unmounted = small_manifest(shared_folder, "unmounted", resources__perNode=SMALL, **NO_CONFIG_MAP)
        runs["unmounted"] = spaces["plain"].apply(unmounted)
        yield Tried(runs, health, shared_folder)


@pytest.mark.parametrize("name", CASES)
def test_a_condition_says_what_kubernetes_says_within_seconds(tried: Tried, name: str) -> None:
    case, run = CASES[name], tried.runs[name]
    ready = run.says("Ready=False", case.reason)
    stalled = run.says("Stalled=True", case.reason)
    reported = reported_at(case, run)
    assert ready.at - reported <= SOON_SECONDS
    assert stalled.at - reported <= SOON_SECONDS
    for said in case.says:
        assert said in ready.message
        assert said in stalled.message


def reported_at(case: Case, run: Run) -> float:
    """When Kubernetes could first be asked about it, in monotonic seconds. Not later than it really was."""
    if case.kubelet:
        return run.container_waits(*case.kubelet)
    if case.reason is not Reason.POD_REFUSED:
        return run.applied_at
    planned = run.says("Planned=True", Reason.PLANNED)  # its pods are tried only then
    return planned.at


def test_a_missing_claim_that_is_made_at_last_lets_the_run_go_on_by_itself(tried: Tried) -> None:
    run = tried.runs["missing-claim"]
    run.says("Stalled=True", Reason.CLAIM_MISSING)
    assert run.pods == []
    make_claim(run.space, "later", "ReadWriteMany", tried.folder)
    made = time.monotonic()
    run.space.until(lambda: len(run.pods) == WORKERS, "pods for every seat")
    assert time.monotonic() - made <= SOON_SECONDS
    run.says("Stalled=False", Reason.NOT_STALLED)
    run.space.until(lambda: any(is_running(pod) for pod in run.pods), "a container with the new claim")


def test_what_cannot_be_made_is_tried_ever_more_slowly(tried: Tried) -> None:
    runs = [tried.runs[name] for name in REFUSED]
    planned = [run.says("Planned=True", Reason.PLANNED).at for run in runs]
    since = min(planned)
    time.sleep(max(0.0, max(planned) + SETTLED_SECONDS - time.monotonic()))
    lasted = time.monotonic() - since
    tries = 2 + sum(1 for _ in doublings(lasted))  # the first at once, the others after 1, 2, 4, … seconds
    assert len(runs) <= tried.health.refused("pods") <= len(runs) * WORKERS * tries
    assert all(run.pods == [] for run in runs)


def test_a_pod_that_cannot_start_is_left_to_the_kubelet(tried: Tried) -> None:
    for run in (tried.runs["unknown-image"], tried.runs["missing-secret"]):
        names = [pod["metadata"]["name"] for pod in run.pods]
        assert sorted(names) == [f"{run.name}-{slot}-0" for slot in range(WORKERS)]


def test_a_volume_that_cannot_be_mounted_is_hinted_at(tried: Tried) -> None:
    """Kubernetes tells of it in events of the pod only, and the operator does not read those."""
    told = tried.runs["unmounted"].says("Ready=False", Reason.WAITING_FOR_NODES)
    assert "unmounted-0-0 has no container on node" in told.message
    assert "a volume cannot be mounted: the pod's events say which (1 more seat waits)" in told.message


def test_an_account_that_is_made_at_last_lets_the_run_go_on_by_itself(tried: Tried) -> None:
    run = tried.runs["unknown-account"]
    run.says("Stalled=True", Reason.POD_REFUSED)
    run.space.create("serviceaccounts", {"metadata": {"name": "nobody"}})
    run.space.until(lambda: len(run.pods) == WORKERS, "pods for every seat", 90)


def test_the_operator_got_over_all_of_it(tried: Tried) -> None:
    tried.health.check()


# what the cluster is made to refuse


def make_claim(space: Space, name: str, mode: str, folder: Path) -> None:
    """A claim that is bound to a volume of its own, on the folder."""
    api = space.operator.installation.api
    volume = f"{name}-{space.namespace}"
    common = {"accessModes": [mode], "storageClassName": ""}
    spec = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": space.namespace, "name": name},
    }
    api.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
    request = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
    space.create("persistentvolumeclaims", {"metadata": {"name": name}, "spec": request})


def limit_memory(space: Space) -> None:
    limit = {"type": "Container", "max": {"memory": "1Gi"}}
    space.create("limitranges", {"metadata": {"name": "small"}, "spec": {"limits": [limit]}})


def make_policy(space: Space) -> None:
    """Pods need a label. Pod Security would have nothing to refuse: no manifest can ask for what it forbids."""
    api, name = space.operator.installation.api, space.namespace
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [pods]},
        "validations": [
            {
                "expression": "'cost-centre' in object.metadata.?labels.orValue({})",
                "message": WITHOUT_COST_CENTRE,
            }
        ],
    }
    api.create(POLICIES, {"metadata": {"name": name}, "spec": spec})
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    api.create(BINDINGS, {"metadata": {"name": name}, "spec": binding})
    space.until(refuses_pods(space), "the policy in force")


def remove_policy(space: Space) -> None:
    api = space.operator.installation.api
    api.delete(f"{BINDINGS}/{space.namespace}")
    api.delete(f"{POLICIES}/{space.namespace}")


def refuses_pods(space: Space) -> Callable[[], bool]:
    """Tried with pods that nobody makes (dry run), and that no other check refuses."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {
        "metadata": {"generateName": "try-", "labels": {Label.RUN_NAME.value: "none"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "one", "image": "localhost/nowhere:1", "securityContext": security}],
        },
    }

    def refused() -> bool:
        try:
            space.operator.installation.api.create(f"{space.path('pods')}?dryRun=All", pod)
        except Refused as error:
            return WITHOUT_COST_CENTRE in error.message
        return False

    return refused


def doublings(seconds: float) -> Iterator[float]:
    """1, 2, 4, … as long as their sum is not more than that."""
    pause, passed = 1.0, 0.0
    while (passed := passed + pause) <= seconds:
        yield pause
        pause *= 2


def is_running(pod: Mapping[str, Any]) -> bool:
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return any("running" in one["state"] or one.get("lastState") for one in states)
