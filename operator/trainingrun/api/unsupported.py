"""What the API will have but this version does not do: fields and values, by path.

Only used to say so: a field listed here is refused as "not supported by this version" instead of "unknown
field". When a field begins to act, it moves from here into the models.
"""

from __future__ import annotations

import re

from trainingrun.protocol.families import EXPERTS, EXPERTS_PROBLEM

_LATER_TASK = "remove it; tasks other than pretrain are planned"
_SECRET = "remove it; only places that need no secret are supported"
_ALWAYS_ONE = "remove it; it is always 1"
_DECIDES = "remove it; the operator decides it"
_RESTRICTED = "remove it; pods keep the restricted Pod Security level"
_CLAIM = "use a persistentVolumeClaim; pods keep the restricted Pod Security level"
_AGENT = "remove it; the container runs the operator's agent, which reports by itself"

FIELDS: dict[str, str] = {
    "spec.suspend": "remove it; a run is stopped for good by deleting it",
    "spec.managedBy": "remove it",
    "spec.profileRef": "remove it, and write its fields into the manifest",
    "spec.dependsOn": "remove it, and create the run when what it depends on is complete",
    "spec.model.secretRef": _SECRET,
    "spec.model.trustRemoteCode": "remove it; no code of the model's is run",
    "spec.model.adapter": "remove it; all weights are trained",
    "spec.data.secretRef": _SECRET,
    "spec.data.sources[].revision": "remove it; the content itself identifies the data",
    "spec.data.sources[].runRef": "remove it, and use uri",
    "spec.data.validation[].weight": "remove it",
    "spec.data.validation[].revision": "remove it; the content itself identifies the data",
    "spec.data.validation[].runRef": "remove it, and use uri",
    "spec.training.duration.epochs": "use steps or tokens",
    "spec.sft": _LATER_TASK,
    "spec.dpo": _LATER_TASK,
    "spec.evaluate": _LATER_TASK,
    "spec.prepare": _LATER_TASK,
    "spec.scale.unitNodes": "remove it; the run grows and shrinks by single nodes",
    "spec.scale.spareNodes": "remove it; raise maxNodes instead",
    "spec.resources.capacityType": "remove it",
    "spec.resources.topology": "remove it",
    "spec.parallelism.axes.data": "remove it; it is never set: it follows from the number of nodes",
    "spec.parallelism.axes.expert": _ALWAYS_ONE,
    "spec.parallelism.onResize": "remove it; the model-parallel shape is kept wherever it fits",
    "spec.checkpoint.location.secretRef": _SECRET,
    "spec.checkpoint.durable.keepEverySteps": "remove it, and use keepLast",
    "spec.recovery.onOutOfMemory": "remove it, and limit the cause OutOfMemory in spec.recovery.limits",
    "spec.recovery.onLossSpike": "remove it",
    "spec.recovery.hangTimeoutSeconds": "remove it",
    "spec.recovery.forceDelete": "remove it; pods are only force-deleted with proof that they do not run",
    "spec.recovery.keepFailedPods": "remove it; the last output of a failed process is in status.failure",
    "spec.evaluation": "remove it; the loss on spec.data.validation is measured at the end",
    "spec.output.mergeAdapter": "remove it; all weights are trained",
    "spec.tracking": "remove it",
    "spec.queueing": "remove it",
    "spec.activeDeadlineSeconds": "remove it, and limit spec.training.duration",
    "spec.ttlSecondsAfterFinished": "remove it",
}

_POD: dict[str, str] = {
    "restartPolicy": _DECIDES,
    "hostname": "remove it; pods are named by the operator",
    "subdomain": "remove it; pods are named by the operator",
    "nodeName": "use nodeSelector or affinity",
    "hostNetwork": _RESTRICTED,
    "hostPID": _RESTRICTED,
    "hostIPC": _RESTRICTED,
    "initContainers": "remove it, and prepare files in the image or on a claim",
    "automountServiceAccountToken": "remove it; workers need no Kubernetes API",
    "enableServiceLinks": _DECIDES,
    "shareProcessNamespace": _DECIDES,
    "activeDeadlineSeconds": "remove it, and limit spec.training.duration",
    "resources": "remove it, and use spec.resources.perNode",
    "resourceClaims": "remove it, and use spec.resources.perNode",
    "topologySpreadConstraints": "use affinity",
    "schedulingGates": "remove it",
    "dnsPolicy": "remove it",
    "dnsConfig": "remove it",
    "hostAliases": "remove it",
    "securityContext.runAsNonRoot": "remove it; it is always true",
    "securityContext.sysctls": _RESTRICTED,
    "securityContext.appArmorProfile": _RESTRICTED,
    "volumes[].hostPath": _CLAIM,
    "volumes[].nfs": _CLAIM,
    "containers[].command": "remove it; an image is started with python -m trainer.agent",
    "containers[].args": "remove it; an image is started with python -m trainer.agent",
    "containers[].workingDir": "remove it",
    "containers[].ports": "remove it; workers of a run reach each other on every port",
    "containers[].resources": "remove it, and use spec.resources.perNode",
    "containers[].livenessProbe": _AGENT,
    "containers[].readinessProbe": _AGENT,
    "containers[].startupProbe": _AGENT,
    "containers[].lifecycle": _AGENT,
    "containers[].terminationMessagePath": _DECIDES,
    "containers[].terminationMessagePolicy": _DECIDES,
    "containers[].restartPolicy": _DECIDES,
    "containers[].stdin": "remove it",
    "containers[].tty": "remove it",
    "containers[].volumeDevices": "remove it, and mount a volume",
    "containers[].volumeMounts[].subPathExpr": "use subPath",
    "containers[].volumeMounts[].mountPropagation": _RESTRICTED,
    "containers[].env[].valueFrom.resourceFieldRef": "use value; spec.resources.perNode has the number",
    "containers[].securityContext.privileged": _RESTRICTED,
    "containers[].securityContext.allowPrivilegeEscalation": _RESTRICTED,
    "containers[].securityContext.capabilities": _RESTRICTED,
    "containers[].securityContext.runAsNonRoot": "remove it; it is always true",
    "containers[].securityContext.procMount": _RESTRICTED,
    "containers[].securityContext.seccompProfile": "use spec.podTemplate.spec.securityContext",
    "containers[].securityContext.seLinuxOptions": "use spec.podTemplate.spec.securityContext",
}
FIELDS |= {f"spec.podTemplate.spec.{path}": fix for path, fix in _POD.items()}

ADOPT_FIX = "remove it, and use another location: a run goes on from its own checkpoints only"
"""For `spec.checkpoint.adopt: true`, a value that is no name out of a list. Restore points are ordered by the
number of their epoch, and the epochs of two runs cannot be compared."""

VALUES: dict[str, frozenset[str]] = {
    "spec.task": frozenset({"sft", "dpo", "evaluate", "prepare"}),
    "spec.model.init": frozenset({"Resume"}),
    "spec.data.sources[].format": frozenset({"Messages", "Pairs"}),
    "spec.data.validation[].format": frozenset({"Messages", "Pairs"}),
    "spec.training.precision": frozenset({"FP8"}),
    "spec.recovery.limits[].cause": frozenset({"Hang"}),
}

PROBLEMS: dict[str, dict[str, str]] = {
    "spec.model.config.model_type": dict.fromkeys(EXPERTS, EXPERTS_PROBLEM)
}
"""Values that never act, and why."""


def pattern_of(path: str) -> str:
    """`spec.data.sources[0].uri` as the tables above have it: `spec.data.sources[].uri`."""
    return re.sub(r"\[[0-9]+\]", "[]", path)


def field_fix(path: str) -> str | None:
    """What to do about a known field that does not act yet; None for an unknown one."""
    return FIELDS.get(pattern_of(path))


def problem_of(path: str, value: object) -> str | None:
    """Why this value is refused for good; None for one that is not known."""
    return PROBLEMS.get(pattern_of(path), {}).get(value) if isinstance(value, str) else None


def is_later_value(path: str, value: object) -> bool:
    return isinstance(value, str) and value in VALUES.get(pattern_of(path), ())
