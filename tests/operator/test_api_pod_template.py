"""spec.podTemplate: what it takes, and how each thing that it does not take is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.api_builders import BASE, a_pod_template, manifest, only_error

from trainingrun.api import worker_pod
from trainingrun.api.load import parse, resolve

METADATA, SPEC = "spec.podTemplate.metadata", "spec.podTemplate.spec"
TRAINER = f"{SPEC}.containers[0]"

REFUSALS: list[tuple[str, Any, str, str]] = [
    # path in the template, value, the error without its hint, a part of the hint
    ("metadata/labels", {"trainingrun.dev/slot": "1"}, "trainingrun.dev/… is set by the operator", "remove"),
    ("metadata/labels", {"app.kubernetes.io/instance": "x"}, "app.kubernetes.io/… is set by", "remove app"),
    (
        "metadata/annotations",
        {"argocd.argoproj.io/tracking-id": "x"},
        f'{METADATA}.annotations["argocd.argoproj.io/tracking-id"]: argocd.argoproj.io/… is set by the operator '
        "or not at all",
        "remove argocd.argoproj.io/tracking-id",
    ),
    (
        "metadata/annotations",
        {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"},
        "container.apparmor.security.beta.kubernetes.io/… is set by the operator or not at all",
        "remove",
    ),
    ("metadata/labels", {"two words": "x"}, "'two words' cannot be the key of a label", "cost-centre"),
    ("metadata/labels", {"a": "two words"}, "'two words' cannot be the value of a label", "at most 63"),
    ("metadata/labels", {f"l{n}": "x" for n in range(33)}, "33 keys, at most 32 allowed", "remove 1"),
    ("metadata/annotations", {"a": "x" * 4097}, "4097 characters, at most 4096", "shorten"),
    ("metadata/name", "x", f"{METADATA}.name: unknown field", "the fields here are: labels, annotations"),
    ("spec/containers/0/name", "sidecar", f"{TRAINER}.name: expected trainer, got the string", "use trainer"),
    (
        "spec/containers",
        [{"name": "trainer"}, {"name": "sidecar"}],
        f"{SPEC}.containers: a list with 2 items, at most 1 allowed",
        "remove 1",
    ),
    ("spec/containers/0/image", "a b", f"{TRAINER}.image: 'a b' has a space in it", "remove it"),
    ("spec/containers/0/imagePullPolicy", "Sometimes", "got the string 'Sometimes'", "IfNotPresent"),
    (
        "spec/containers/0/env",
        [{"name": "TRAININGRUN_SLOT", "value": "7"}],
        f"{TRAINER}.env[0].name: TRAININGRUN_SLOT: names that begin with TRAININGRUN_ belong to the operator",
        "rename the variable",
    ),
    (
        "spec/containers/0/env",
        [{"name": "WORLD_SIZE"}],
        "WORLD_SIZE: the agent sets it for each",
        "remove it",
    ),
    ("spec/containers/0/env", [{"name": "1A"}], "'1A' cannot be the name of a variable", "no digit first"),
    ("spec/containers/0/env", [{"name": "A"}, {"name": "A"}], "env[1].name: A is there already", "keep one"),
    (
        "spec/containers/0/env",
        [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        f"{TRAINER}.env[0]: A: both value and valueFrom are set",
        "remove one",
    ),
    ("spec/containers/0/env", [{"name": "A", "valueFrom": {}}], "names 0 places, exactly one", "fieldRef"),
    ("spec/containers/0/envFrom", [{}], "neither secretRef nor configMapRef is set", "exactly one"),
    (
        "spec/containers/0/volumeMounts",
        [{"name": "nowhere", "mountPath": "/x"}],
        f"{TRAINER}.volumeMounts[0].name: nowhere mounts a volume that {SPEC}.volumes does not have",
        "add it there",
    ),
    (
        "spec/containers/0/volumeMounts",
        [{"name": "scratch", "mountPath": "/a"}, {"name": "scratch", "mountPath": "/a"}],
        "volumeMounts[1].mountPath: /a is there already, at volumeMounts[0]",
        "keep one",
    ),
    ("spec/volumes", [{"name": "trainingrun-tmp", "emptyDir": {}}], "names that begin with", "rename"),
    ("spec/volumes", [{"name": "scratch"}], "scratch: has no source, exactly one", "emptyDir"),
    (
        "spec/volumes",
        [{"name": "scratch", "emptyDir": {}, "secret": {"secretName": "x"}}],
        f"{SPEC}.volumes[0]: scratch: has emptyDir and secret, exactly one source is needed",
        "set one of emptyDir",
    ),
    (
        "spec/volumes",
        [{"name": "scratch", "glusterfs": {}}],
        "volumes[0].glusterfs: unknown field",
        "remove it",
    ),
    (
        "spec/volumes",
        [{"name": "scratch", "secret": {"secretName": "x", "name": "x"}}],
        "volumes[0].secret.name: unknown field",
        "secretName",
    ),
    (
        "spec/volumes",
        [{"name": "scratch", "configMap": {"secretName": "x", "name": "x"}}],
        "volumes[0].configMap.secretName: unknown field",
        "name",
    ),
    ("spec/securityContext/runAsUser", 0, "runAsUser: 0 is less than the minimum, 1", "at least 1"),
    ("spec/securityContext/seccompProfile", {"type": "Unconfined"}, "expected RuntimeDefault or", "use Run"),
    ("spec/tolerations", [{"effect": "Never"}], "effect: expected NoSchedule or", "use NoSchedule"),
    ("spec/serviceAccount", "x", "unknown field; did you mean serviceAccountName?", "rename"),
    ("spec/terminationGracePeriodSeconds", 0, "0 is less than the minimum, 1", "at least 1"),
]


@pytest.mark.parametrize(("path", "value", "message", "hint"), REFUSALS)
def test_what_a_pod_template_cannot_say_is_named_with_value_and_fix(
    path: str, value: Any, message: str, hint: str
) -> None:
    error = only_error(("spec/podTemplate", a_pod_template((path, value))))
    first, _, second = str(error).partition("\n  hint: ")
    assert first.startswith("spec.podTemplate.")
    assert message in first
    assert hint in second


@pytest.mark.parametrize(
    "path",
    ["/tmp", "/tmp/x", "/dev/shm", "/mnt", "/mnt/claims/a", "/var", "/run/secrets", "/var/lib", "/proc"],
)
def test_nothing_is_mounted_in_the_way_of_what_the_worker_uses(path: str) -> None:
    mounts = [{"name": "scratch", "mountPath": path}]
    error = only_error(("spec/podTemplate", a_pod_template(("spec/containers/0/volumeMounts", mounts))))
    assert "is in the way of" in error.message
    assert error.fix == "mount it somewhere else, such as /data"


@pytest.mark.parametrize("path", ["/mnt/data", "/tmpfs", "/data/tmp", "/var/lib/other", "/opt"])
def test_paths_beside_them_are_free(path: str) -> None:
    mounts = [{"name": "scratch", "mountPath": path}]
    parse(manifest(("spec/podTemplate", a_pod_template(("spec/containers/0/volumeMounts", mounts)))), BASE)


@pytest.mark.parametrize("path", ["relative", "/", "/a:b", "/a/../b", "/a//b", "/a/"])
def test_a_mount_path_that_is_no_plain_absolute_path_is_refused(path: str) -> None:
    mounts = [{"name": "scratch", "mountPath": path}]
    error = only_error(("spec/podTemplate", a_pod_template(("spec/containers/0/volumeMounts", mounts))))
    assert "must be an absolute path" in error.message


def test_a_pod_template_that_no_record_could_hold_is_refused() -> None:
    env = [{"name": f"V{number}", "value": "x" * 32000} for number in range(3)]
    error = only_error(("spec/podTemplate", a_pod_template(("spec/containers/0/env", env))))
    assert error.path == "spec.podTemplate"
    assert "at most 65536 are allowed" in error.message
    assert "ConfigMap" in error.fix


def test_a_pod_template_resolves_to_itself_and_to_nothing_when_there_is_none() -> None:
    template = a_pod_template()
    spec = resolve(parse(manifest(("spec/podTemplate", template)), BASE), BASE)
    assert spec["podTemplate"] == template
    assert resolve(parse({**manifest(), "spec": spec}, None), None) == spec
    assert "podTemplate" not in resolve(parse(manifest(), BASE), BASE)


def test_keys_of_a_config_map_and_of_a_secret_are_files_under_the_names_of_kubernetes() -> None:
    keys = {"items": [{"key": "a", "path": "b/c", "mode": 256}], "defaultMode": 288, "optional": True}
    volumes = [
        {"name": "scratch", "configMap": {"name": "settings", **keys}},
        {"name": "login", "secret": {"secretName": "key", **keys}},
    ]
    template = a_pod_template(("spec/volumes", volumes))
    spec = resolve(parse(manifest(("spec/podTemplate", template)), BASE), BASE)
    assert spec["podTemplate"]["spec"]["volumes"] == volumes


@pytest.mark.parametrize("path", ["/a", "/mnt/claim", "/var/run/other/.."])
def test_a_path_is_in_use_only_by_whole_names(path: str) -> None:
    assert bool(worker_pod.path_in_use(path)) == path.startswith("/var/run")
