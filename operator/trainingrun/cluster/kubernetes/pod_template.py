"""The pods of a run: rendered once for a revision and frozen in it, then completed for each seat.

`render_pod_template` decides everything that all pods of a revision share; `pod_manifest` adds what tells them apart:
name, labels and owner. The container reads slot and incarnation from those labels, so a later version of the operator
starts the very same pods. Pure; called by the adapter. Every pod passes the restricted Pod Security level.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api import worker_pod as own
from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.objects import RunRef, owner_reference
from trainingrun.cluster.kubernetes.pod_environment import environment
from trainingrun.cluster.kubernetes.pod_storage import mounts, spec_source, volumes
from trainingrun.ports import PodTemplate
from trainingrun.protocol.names import pod_name

COMMAND = ("python", "-m", "trainer.agent")
USER = 65532  # nobody of the host's: the number that small base images know as "nonroot"
GRACE_SECONDS = 30  # to hand over and to write a last checkpoint
WORKER_LABELS = {
    "app.kubernetes.io/name": "trainingrun-worker",
    "app.kubernetes.io/component": "worker",
    "app.kubernetes.io/managed-by": "trainingrun",
    "app.kubernetes.io/part-of": "trainingrun",
}


@dataclass(frozen=True)
class TemplateSettings:
    """What the operator's own settings give to a pod."""

    trainer_image: str
    pull_policy: str  # of that image; an image of the manifest's has a policy of its own
    membership_url: str


def render_pod_template(
    run_name: str, run_uid: str, spec: Mapping[str, Any], settings: TemplateSettings
) -> dict[str, Any]:
    """{"metadata", "spec"} of the pods of a resolved spec, as JSON data. The same input gives the same answer."""
    wanted = spec.get("podTemplate") or {}
    metadata, pod = wanted.get("metadata") or {}, wanted.get("spec") or {}
    labels = {
        **(metadata.get("labels") or {}),
        **WORKER_LABELS,
        Label.RUN_NAME.value: run_name,
        Label.RUN_UID.value: run_uid,
    }
    rendered: dict[str, Any] = {
        **{key: pod[key] for key in _HANDED_ON if pod.get(key) is not None},
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": pod.get("terminationGracePeriodSeconds") or GRACE_SECONDS,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",  # a large volume is not walked through at each start
            "seccompProfile": {"type": "RuntimeDefault"},
            **(pod.get("securityContext") or {}),
            "runAsNonRoot": True,
        },
        "affinity": _affinity(run_uid, pod.get("affinity") or {}),
        "containers": [_container(run_name, run_uid, spec, settings, _wanted_container(pod))],
        "volumes": [*volumes(run_name, spec), *(pod.get("volumes") or ())],
    }
    annotations = metadata.get("annotations") or {}
    template = {
        "metadata": {"labels": labels, **({"annotations": annotations} if annotations else {})},
        "spec": rendered,
    }
    return copy.deepcopy(template)  # shares nothing with the spec


def pod_manifest(template: PodTemplate) -> dict[str, Any]:
    """The pod to create for a seat: the frozen template with name, labels, owner and the revision's spec."""
    frozen = copy.deepcopy(dict(template.template))
    spec, metadata = frozen["spec"], frozen["metadata"]
    spec_source(spec["volumes"])["name"] = template.revision
    labels = {
        **metadata["labels"],
        Label.SLOT.value: str(template.slot),
        Label.INCARNATION.value: str(template.incarnation),
        Label.REVISION.value: template.revision,
    }
    run = RunRef(template.namespace, template.run, template.run_uid)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": pod_name(template.run, template.slot, template.incarnation),
            "namespace": template.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(run)],
        },
        "spec": spec,
    }


_HANDED_ON = (
    "serviceAccountName",
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "imagePullSecrets",
)


def _wanted_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    named = (one for one in pod.get("containers") or () if one["name"] == own.CONTAINER)
    return next(named, {})


def _container(
    run_name: str,
    run_uid: str,
    spec: Mapping[str, Any],
    settings: TemplateSettings,
    wanted: Mapping[str, Any],
) -> dict[str, Any]:
    image = wanted.get("image")
    policy = wanted.get("imagePullPolicy") or ("" if image else settings.pull_policy)
    container: dict[str, Any] = {
        "name": own.CONTAINER,
        "image": image or settings.trainer_image,
        **({"imagePullPolicy": policy} if policy else {}),
        "command": list(COMMAND),
        "env": environment(run_name, run_uid, spec, settings.membership_url, wanted.get("env") or ()),
        "resources": _resources(spec["resources"]["perNode"]),
        "volumeMounts": [*mounts(spec), *(wanted.get("volumeMounts") or ())],
        "terminationMessagePath": own.TERMINATION_LOG,
        # An image without our agent leaves no last words, but its log says what is missing.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "readOnlyRootFilesystem": True,
            **(wanted.get("securityContext") or {}),
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if wanted.get("envFrom"):
        container["envFrom"] = wanted["envFrom"]
    return container


def _resources(per_node: Mapping[str, str]) -> dict[str, Any]:
    """Memory and devices are there or not: request = limit. A limit on the cpu would only throttle the steps."""
    return {
        "requests": dict(per_node),
        "limits": {name: amount for name, amount in per_node.items() if name != "cpu"},
    }


def _affinity(run_uid: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """No two workers of a run on one machine: a node is one worker pod, and its loss is the loss of one."""
    apart = {
        "labelSelector": {"matchLabels": {Label.RUN_UID.value: run_uid}},
        "topologyKey": "kubernetes.io/hostname",
    }
    from_pods = wanted.get("podAntiAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {**wanted, "podAntiAffinity": {**from_pods, required: [apart, *(from_pods.get(required) or ())]}}
