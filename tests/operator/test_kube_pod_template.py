"""The rendered worker pod: what the agent is told, where it may write, what is added by a manifest, and that it
passes the restricted Pod Security level whatever a manifest asks for.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.operator.api_builders import BASE, a_pod_template, manifest
from tests.operator.pod_security import RULES, violations

from trainingrun.api import constants, worker_pod
from trainingrun.api.constants import Label
from trainingrun.api.load import parse, resolve
from trainingrun.cluster.kubernetes.pod_storage import snapshot_bytes
from trainingrun.cluster.kubernetes.pod_template import (
    WORKER_LABELS,
    TemplateSettings,
    pod_manifest,
    render_pod_template,
)
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.ports import PodTemplate
from trainingrun.protocol import names

GOLDEN = Path(__file__).parents[1] / "golden" / "worker-pod.yaml"
UID = "8f14e45f-ceea-4c6a-9b1d-0a1b2c3d4e5f"
SETTINGS = TemplateSettings(
    trainer_image="example.com/trainingrun-trainer:1",
    pull_policy="IfNotPresent",
    membership_url="https://trainingrun-membership.trainingrun-system.svc:8443",
)


def a_spec(*changes: tuple[str, Any]) -> dict[str, Any]:
    return resolve(parse(manifest(*changes), BASE), BASE)


def a_template(*changes: tuple[str, Any]) -> dict[str, Any]:
    return render_pod_template("small", UID, a_spec(*changes), SETTINGS)


def a_seat(template: dict[str, Any]) -> PodTemplate:
    return PodTemplate(
        run="small",
        run_uid=UID,
        slot=3,
        incarnation=2,
        revision="small-r1",
        resources={},
        processes=1,
        namespace="team-a",
        template=template,
    )


def a_pod(*changes: tuple[str, Any]) -> dict[str, Any]:
    return pod_manifest(a_seat(a_template(*changes)))


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return container


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in trainer(pod)["env"]}


def volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in pod["spec"]["volumes"] if one["name"] == name)


def mount(pod: dict[str, Any], path: str) -> dict[str, Any]:
    return next(one for one in trainer(pod)["volumeMounts"] if one["mountPath"] == path)


ON_CLAIMS = (
    ("spec/data/sources/0/uri", "pvc://corpus/train"),
    ("spec/checkpoint/location/uri", "pvc://trainingrun/checkpoints"),
    ("spec/output/uri", "pvc://trainingrun/models/small"),
)
FULL = ("spec/podTemplate", a_pod_template())


def test_the_pod_is_the_golden_one() -> None:
    assert a_pod(*ON_CLAIMS, FULL) == yaml.safe_load(GOLDEN.read_text())


@pytest.mark.parametrize("version", [constants.OLDEST_KUBERNETES, constants.NEWEST_KUBERNETES])
@pytest.mark.parametrize("changes", [(), ON_CLAIMS, (*ON_CLAIMS, FULL)])
def test_kubernetes_knows_every_field_of_the_pod(version: str, changes: Any) -> None:
    kubernetes_validate.validate(a_pod(*changes), version, strict=True)


def test_the_same_spec_gives_the_same_template_and_shares_nothing_with_it() -> None:
    spec = a_spec(FULL)
    before = copy.deepcopy(spec)
    first = render_pod_template("small", UID, spec, SETTINGS)
    assert json.loads(json.dumps(first)) == first
    first["spec"]["tolerations"][0]["key"] = "changed"
    first["metadata"]["labels"]["cost-centre"] = "changed"
    assert spec == before
    assert render_pod_template("small", UID, spec, SETTINGS) != first


def test_a_seat_adds_name_labels_owner_and_the_spec_of_its_revision_and_nothing_else() -> None:
    template = a_template()
    frozen = copy.deepcopy(template)
    seat = a_seat(template)
    pod, other = pod_manifest(seat), pod_manifest(replace(seat, slot=0, incarnation=9))
    assert template == frozen
    assert pod["metadata"]["name"] == "small-3-2"
    assert pod["metadata"]["namespace"] == "team-a"
    labels = pod["metadata"]["labels"]
    assert {key: labels[key] for key in (Label.SLOT, Label.INCARNATION, Label.REVISION)} == {
        Label.SLOT: "3",
        Label.INCARNATION: "2",
        Label.REVISION: "small-r1",
    }
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "TrainingRun",
        "small",
        UID,
        True,
    )
    assert pod["spec"] == other["spec"]  # what differs is read from labels and fields of the pod itself
    sources = volume(pod, "trainingrun-config")["projected"]["sources"]
    assert [source["configMap"]["name"] for source in sources if "configMap" in source] == [
        "small-r1",
        "small-membership",
    ]


def test_labels_are_ours_and_the_manifests_and_none_of_the_runs_own() -> None:
    run = manifest(FULL)
    run["metadata"]["labels"] = {"app.kubernetes.io/instance": "from-argo", "team": "a"}
    run["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "x", "kubectl.kubernetes.io/x": "y"}
    template = render_pod_template("small", UID, resolve(parse(run, BASE), BASE), SETTINGS)
    assert template["metadata"] == {
        "labels": {
            **WORKER_LABELS,
            Label.RUN_NAME: "small",
            Label.RUN_UID: UID,
            "cost-centre": "nlp",
        },
        "annotations": {"example.com/owner": "team-a"},
    }


def test_the_agent_is_told_all_that_it_reads() -> None:
    told = variables(a_pod())
    wanted = {value for key, value in vars(names).items() if key.startswith("ENV_")}
    assert wanted <= set(told)
    fields = {name: value["fieldRef"]["fieldPath"] for name, value in told.items() if isinstance(value, dict)}
    assert fields == {
        names.ENV_POD_NAME: "metadata.name",
        names.ENV_POD_UID: "metadata.uid",
        names.ENV_NODE_NAME: "spec.nodeName",
        names.ENV_POD_ADDRESS: "status.podIP",
        names.ENV_SLOT: "metadata.labels['trainingrun.dev/slot']",
        names.ENV_INCARNATION: "metadata.labels['trainingrun.dev/incarnation']",
    }
    assert told[names.ENV_MEMBERSHIP_URL] == SETTINGS.membership_url
    assert told[names.ENV_PROCESSES] == "1"
    assert told[names.ENV_RESTART_POLICY] == "OnFailure"
    assert told["TRAININGRUN_LOG_STDOUT"] == "1"


def test_every_place_that_the_agent_is_told_of_is_mounted() -> None:
    pod = a_pod(*ON_CLAIMS)
    told = variables(pod)
    mounted = {one["mountPath"] for one in trainer(pod)["volumeMounts"]}
    places = {told[name] for name in (names.ENV_SNAPSHOT_DIR, names.ENV_LOG_DIR, names.ENV_CACHE_DIR)}
    assert places | {told["HOME"], told["TMPDIR"]} <= mounted
    config = volume(pod, "trainingrun-config")["projected"]["sources"]
    files = {item["path"] for source in config for item in source.get("configMap", {}).get("items", [])}
    files |= {source["serviceAccountToken"]["path"] for source in config if "serviceAccountToken" in source}
    for name in (names.ENV_SPEC_FILE, names.ENV_MEMBERSHIP_CA, names.ENV_MEMBERSHIP_TOKEN):
        folder, _, file = told[name].rpartition("/")
        assert mount(pod, folder)["readOnly"] is True
        assert file in files
    assert told[names.ENV_TERMINATION_LOG] == trainer(pod)["terminationMessagePath"]


def test_everything_the_worker_mounts_is_out_of_a_manifests_reach() -> None:
    pod = a_pod(*ON_CLAIMS)
    for one in trainer(pod)["volumeMounts"]:
        assert worker_pod.path_in_use(one["mountPath"])
        assert one["name"].startswith(worker_pod.VOLUME_PREFIX)
    for name in variables(pod):
        assert name.startswith(worker_pod.VARIABLE_PREFIX) or name in (
            "HOME",
            "USER",
            "TMPDIR",
            "HF_HOME",
            "OMP_NUM_THREADS",
            "PYTHONUNBUFFERED",
        )


def test_the_token_is_for_membership_only_and_no_other_is_mounted() -> None:
    pod = a_pod()
    tokens = [
        source["serviceAccountToken"]
        for source in volume(pod, "trainingrun-config")["projected"]["sources"]
        if "serviceAccountToken" in source
    ]
    assert tokens == [{"audience": names.TOKEN_AUDIENCE, "expirationSeconds": 3600, "path": "token"}]
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_claims_are_mounted_once_and_read_only_where_they_are_only_read() -> None:
    pod = a_pod(*ON_CLAIMS)
    claims = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert [one["persistentVolumeClaim"] for one in claims] == [
        {"claimName": "corpus", "readOnly": True},
        {"claimName": "trainingrun"},
    ]
    assert mount(pod, "/mnt/claims/corpus")["readOnly"] is True
    assert "readOnly" not in mount(pod, "/mnt/claims/trainingrun")
    assert variables(pod)[names.ENV_CLAIMS_DIR] == "/mnt/claims"


def test_memory_and_devices_are_limited_to_what_is_asked_for_and_the_cpu_is_not() -> None:
    per_node = {"cpu": "6", "memory": "64Gi", "nvidia.com/gpu": "4"}
    pod = a_pod(("spec/resources/perNode", per_node))
    assert trainer(pod)["resources"] == {
        "requests": per_node,
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"},
    }
    assert variables(pod)[names.ENV_PROCESSES] == "4"
    assert variables(pod)["OMP_NUM_THREADS"] == "1"


def test_snapshots_are_in_memory_and_leave_the_processes_what_they_need() -> None:
    limit = volume(a_pod(), "trainingrun-snapshots")["emptyDir"]
    assert limit == {"medium": "Memory", "sizeLimit": "3200Mi"}  # 4 GiB - 768 MiB - 128 MiB a process
    on_devices = a_spec(("spec/resources/perNode", {"cpu": "6", "memory": "64Gi", "nvidia.com/gpu": "4"}))
    assert snapshot_bytes(on_devices) == 56 * 2**30  # 2 GiB for each of the four processes
    assert snapshot_bytes(a_spec(("spec/resources/perNode/memory", "512Mi"))) == 64 * 2**20


@pytest.mark.parametrize("hidden", [128, 1024])
def test_no_plan_that_fits_has_larger_snapshots_than_their_volume(hidden: int) -> None:
    spec = a_spec(
        ("spec/model/config/hidden_size", hidden),
        ("spec/model/config/intermediate_size", 4 * hidden),
        ("spec/training/globalBatch", {"sequences": 2}),
        ("spec/training/sequenceLength", 16),
    )
    path = plan(*planner_inputs(spec))
    assert path.rungs
    for planned in path.rungs:
        assert planned.memory.snapshots * planned.rung.processes_per_node <= snapshot_bytes(spec)


def test_two_workers_of_a_run_are_never_on_one_machine() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    apart = {
        "labelSelector": {"matchLabels": {"trainingrun.dev/run-uid": UID}},
        "topologyKey": "kubernetes.io/hostname",
    }
    assert a_template()["spec"]["affinity"] == {"podAntiAffinity": {required: [apart]}}
    wanted = a_template(FULL)["spec"]["affinity"]
    assert wanted["podAntiAffinity"][required][0] == apart
    assert len(wanted["podAntiAffinity"][required]) == 2
    assert "nodeAffinity" in wanted


def test_what_the_manifest_adds_is_in_the_pod() -> None:
    pod = a_pod(FULL)
    given = a_pod_template()
    for field in (
        "serviceAccountName",
        "nodeSelector",
        "tolerations",
        "priorityClassName",
        "schedulerName",
        "runtimeClassName",
        "imagePullSecrets",
        "terminationGracePeriodSeconds",
    ):
        assert pod["spec"][field] == given["spec"][field]
    container, wanted = trainer(pod), given["spec"]["containers"][0]
    assert container["image"] == "example.com/trainer:2"
    assert container["imagePullPolicy"] == "Always"
    assert container["envFrom"] == wanted["envFrom"]
    assert container["env"][-2:] == wanted["env"]
    assert container["volumeMounts"][-1] == {"name": "scratch", "mountPath": "/scratch"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert volume(pod, "scratch") == given["spec"]["volumes"][0]
    security = pod["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["supplementalGroups"]) == (
        1000,
        65532,
        [2000],
    )


def test_an_image_of_the_manifests_has_no_pull_policy_of_the_operators() -> None:
    pod = a_pod(("spec/podTemplate/spec/containers", [{"name": "trainer", "image": "mine:1"}]))
    assert "imagePullPolicy" not in trainer(pod)
    assert trainer(a_pod())["imagePullPolicy"] == "IfNotPresent"


def test_a_variable_of_the_manifests_replaces_a_usual_one() -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "HF_HOME", "value": "/scratch"}]
    pod = a_pod(("spec/podTemplate/spec/containers", [{"name": "trainer", "env": env}]))
    listed = [one["name"] for one in trainer(pod)["env"]]
    assert len(listed) == len(set(listed))
    assert variables(pod)["OMP_NUM_THREADS"] == "7"
    assert variables(pod)["HF_HOME"] == "/scratch"


def test_the_pod_is_started_and_stopped_as_the_agent_expects() -> None:
    pod = a_pod()
    assert trainer(pod)["command"] == ["python", "-m", "trainer.agent"]
    assert pod["spec"]["restartPolicy"] == "OnFailure"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    assert pod["spec"]["enableServiceLinks"] is False
    assert "tolerations" not in pod["spec"]


@pytest.mark.parametrize("changes", [(), ON_CLAIMS, (*ON_CLAIMS, FULL)])
def test_the_pod_passes_the_restricted_level_and_writes_to_nothing_of_its_image(changes: Any) -> None:
    pod = a_pod(*changes)
    assert violations(pod) == []
    security = pod["spec"]["securityContext"]
    assert security["fsGroup"] == 65532
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    if not any(path == FULL[0] for path, _ in changes):
        assert trainer(pod)["securityContext"]["readOnlyRootFilesystem"] is True


LOOSE: dict[str, tuple[str, Any]] = {
    "host processes": ("spec/securityContext/windowsOptions", {"hostProcess": True}),
    "host namespaces": ("spec/hostNetwork", True),
    "privileged": ("spec/containers/0/securityContext/privileged", True),
    "host ports": ("spec/containers/0/ports", [{"containerPort": 1, "hostPort": 1}]),
    "host probes": ("spec/containers/0/livenessProbe", {"tcpSocket": {"port": 1, "host": "x"}}),
    "apparmor": ("spec/securityContext/appArmorProfile", {"type": "Unconfined"}),
    "selinux": ("spec/securityContext/seLinuxOptions", {"type": "spc_t"}),
    "proc mount": ("spec/containers/0/securityContext/procMount", "Unmasked"),
    "sysctls": ("spec/securityContext/sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
    "volume types": ("spec/volumes/0", {"name": "x", "hostPath": {"path": "/"}}),
    "privilege escalation": ("spec/containers/0/securityContext/allowPrivilegeEscalation", True),
    "run as non-root": ("spec/containers/0/securityContext/runAsNonRoot", False),
    "run as user": ("spec/containers/0/securityContext/runAsUser", 0),
    "seccomp": ("spec/securityContext/seccompProfile", {"type": "Unconfined"}),
    "capabilities": (
        "spec/containers/0/securityContext/capabilities",
        {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_check_of_the_restricted_level_sees_each_way_out_of_it(rule: str) -> None:
    path, value = LOOSE[rule]
    pod = a_pod()
    *parents, last = path.split("/")
    holder: Any = pod
    for key in parents:
        holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
    holder[int(last) if isinstance(holder, list) else last] = value
    assert violations(pod) == [rule]
