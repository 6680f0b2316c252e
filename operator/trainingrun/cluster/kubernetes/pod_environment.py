"""The environment of the trainer container: what the agent reads, and what libraries need in a read-only image.

What is different in each pod of a revision comes by the downward API. Pure; used by `pod_template`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainingrun.api import worker_pod as own
from trainingrun.api.constants import Label
from trainingrun.api.quantity import parse_quantity
from trainingrun.cluster.kubernetes.pod_storage import CA_KEY, SPEC_KEY, TOKEN_FILE
from trainingrun.protocol import names

LOG_STDOUT = "TRAININGRUN_LOG_STDOUT"  # the agent writes what its processes say to its own output too


def environment(
    run_name: str,
    run_uid: str,
    spec: Mapping[str, Any],
    membership_url: str,
    wanted: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Variables in the form of a container. `wanted` are the manifest's: they win over `_usual`, and no other."""
    own_values = {
        names.ENV_RUN_NAME: run_name,
        names.ENV_RUN_UID: run_uid,
        names.ENV_PROCESSES: str(spec["resources"]["processesPerNode"]),
        names.ENV_MEMBERSHIP_URL: membership_url,
        names.ENV_MEMBERSHIP_CA: f"{own.CONFIG_DIR}/{CA_KEY}",
        names.ENV_MEMBERSHIP_TOKEN: f"{own.CONFIG_DIR}/{TOKEN_FILE}",
        names.ENV_SPEC_FILE: f"{own.CONFIG_DIR}/{SPEC_KEY}",
        names.ENV_SNAPSHOT_DIR: own.SNAPSHOT_DIR,
        names.ENV_TERMINATION_LOG: own.TERMINATION_LOG,
        names.ENV_LOG_DIR: own.LOG_DIR,
        names.ENV_CACHE_DIR: own.CACHE_DIR,
        names.ENV_CLAIMS_DIR: own.CLAIMS_DIR,
        names.ENV_RESTART_POLICY: "OnFailure",
        LOG_STDOUT: "1",
    }
    fields = {
        names.ENV_POD_NAME: "metadata.name",
        names.ENV_POD_UID: "metadata.uid",
        names.ENV_NODE_NAME: "spec.nodeName",
        names.ENV_POD_ADDRESS: "status.podIP",
        names.ENV_SLOT: f"metadata.labels['{Label.SLOT.value}']",
        names.ENV_INCARNATION: f"metadata.labels['{Label.INCARNATION.value}']",
    }
    chosen = [dict(variable) for variable in wanted]
    taken = {variable["name"] for variable in chosen}
    usual = {name: value for name, value in _usual(spec).items() if name not in taken}
    return [
        *({"name": name, "value": value} for name, value in own_values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in usual.items()),
        *chosen,
    ]


def _usual(spec: Mapping[str, Any]) -> dict[str, str]:
    resources = spec["resources"]
    cores, processes = parse_quantity(resources["perNode"]["cpu"]), int(resources["processesPerNode"])
    return {
        # The image's files are read-only, and its user has no entry in /etc/passwd.
        "HOME": own.HOME_DIR,
        "USER": own.CONTAINER,
        "TMPDIR": own.TEMPORARY_DIR,
        "HF_HOME": f"{own.CACHE_DIR}/huggingface",
        # Without it each process would start one thread for each core of the whole machine.
        "OMP_NUM_THREADS": str(max(1, int(cores / processes))),
        "PYTHONUNBUFFERED": "1",
    }
