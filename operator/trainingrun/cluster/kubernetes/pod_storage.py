"""The volumes of a worker pod, and where its container sees them. Pure; used by `pod_template`.

Nothing of the image is written to. Snapshots lie in memory, in files that outlive the container but not the pod; the
volume is counted in the pod's own memory, which the plan has reckoned with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainingrun.api import worker_pod as own
from trainingrun.api.claims import mounted_claims
from trainingrun.api.quantity import accelerator, parse_bytes
from trainingrun.planner.hardware.cpu import CPU
from trainingrun.protocol.names import TOKEN_AUDIENCE

SPEC_KEY = "spec.json"  # in the ConfigMap of the revision, and the name of the file
CA_KEY = "ca.crt"  # in the ConfigMap of the run's membership, and the name of the file
TOKEN_FILE = "token"
TOKEN_SECONDS = 3600

_CONFIG = f"{own.VOLUME_PREFIX}config"
_SNAPSHOTS = f"{own.VOLUME_PREFIX}snapshots"
_SHARED_MEMORY = f"{own.VOLUME_PREFIX}shared-memory"
_ON_DISK = {
    f"{own.VOLUME_PREFIX}tmp": own.TEMPORARY_DIR,
    f"{own.VOLUME_PREFIX}logs": own.LOG_DIR,
    f"{own.VOLUME_PREFIX}cache": own.CACHE_DIR,
    f"{own.VOLUME_PREFIX}home": own.HOME_DIR,
}
_MIB = 2**20
_LEAST_SNAPSHOTS = 64 * _MIB
_HOST_PROCESS_BYTES = 2 << 30  # of a process that trains on an accelerator, as the planner has it


def membership_config_map(run_name: str) -> str:
    """Name of the ConfigMap with the certificate of membership's CA, beside the run and owned by it."""
    return f"{run_name}-membership"


def volumes(run_name: str, spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {
        "name": _CONFIG,
        "projected": {
            "sources": [
                {
                    "serviceAccountToken": {
                        "audience": TOKEN_AUDIENCE,
                        "expirationSeconds": TOKEN_SECONDS,
                        "path": TOKEN_FILE,
                    }
                },
                # The name is the revision's, which is not known yet: see `spec_source`.
                {"configMap": {"name": "", "items": [{"key": SPEC_KEY, "path": SPEC_KEY}]}},
                {
                    "configMap": {
                        "name": membership_config_map(run_name),
                        "items": [{"key": CA_KEY, "path": CA_KEY}],
                    }
                },
            ]
        },
    }
    yield _memory(_SNAPSHOTS, snapshot_bytes(spec))
    yield _memory(_SHARED_MEMORY, _memory_bytes(spec) // 8)
    for name in _ON_DISK:
        yield {"name": name, "emptyDir": {}}
    for index, claim in enumerate(mounted_claims(spec)):
        source = {"claimName": claim.name, **({} if claim.writes else {"readOnly": True})}
        yield {"name": _claim_volume(index), "persistentVolumeClaim": source}


def mounts(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"name": _CONFIG, "mountPath": own.CONFIG_DIR, "readOnly": True}
    yield {"name": _SNAPSHOTS, "mountPath": own.SNAPSHOT_DIR}
    yield {"name": _SHARED_MEMORY, "mountPath": own.SHARED_MEMORY_DIR}
    for name, path in _ON_DISK.items():
        yield {"name": name, "mountPath": path}
    for index, claim in enumerate(mounted_claims(spec)):
        mount = {"name": _claim_volume(index), "mountPath": f"{own.CLAIMS_DIR}/{claim.name}"}
        yield mount if claim.writes else {**mount, "readOnly": True}


def spec_source(all_volumes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The part of the rendered volumes that names the ConfigMap with the revision's spec."""
    config = next(volume for volume in all_volumes if volume["name"] == _CONFIG)
    found: dict[str, Any] = next(
        source["configMap"]
        for source in config["projected"]["sources"]
        if source.get("configMap", {}).get("items", [{}])[0].get("key") == SPEC_KEY
    )
    return found


def snapshot_bytes(spec: Mapping[str, Any]) -> int:
    """Most that snapshots may take: all memory but what the planner sets aside for interpreters and libraries.

    So the limit never binds for a plan that fits (two buffers of weights and optimizer can be more than half of
    the memory), and what does not fit ends in "no space left", not in processes that are killed for their memory.
    """
    processes = int(spec["resources"]["processesPerNode"])
    if accelerator(spec["resources"]["perNode"]):
        set_aside = processes * _HOST_PROCESS_BYTES
    else:
        set_aside = CPU.node_bytes + processes * CPU.process_bytes
    return max(_LEAST_SNAPSHOTS, _memory_bytes(spec) - set_aside)


def _memory(name: str, limit: int) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{max(1, limit // _MIB)}Mi"}}


def _memory_bytes(spec: Mapping[str, Any]) -> int:
    return parse_bytes(spec["resources"]["perNode"]["memory"])


def _claim_volume(index: int) -> str:
    return f"{own.VOLUME_PREFIX}claim-{index}"
