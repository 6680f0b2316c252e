"""The restricted level of the Kubernetes Pod Security Standards, as rules over a pod: what `violations` finds, the
API server refuses in a namespace that enforces it. Each rule is a row of the standard's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Pod = Mapping[str, Any]

ADDABLE = {"NET_BIND_SERVICE"}
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
}


def violations(pod: Pod) -> list[str]:
    """The names of the rules that the pod breaks."""
    return [name for name, holds in RULES.items() if not holds(pod)]


def containers(pod: Pod) -> list[dict[str, Any]]:
    spec = pod["spec"]
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in spec.get(kind, [])]


def _contexts(pod: Pod) -> Iterator[dict[str, Any]]:
    """The security contexts of the pod and of all its containers."""
    yield pod["spec"].get("securityContext", {})
    for container in containers(pod):
        yield container.get("securityContext", {})


def _all(pod: Pod, holds: Callable[[dict[str, Any]], bool]) -> bool:
    return all(holds(context) for context in _contexts(pod))


def _each(pod: Pod, holds: Callable[[dict[str, Any]], bool]) -> bool:
    return all(holds(container.get("securityContext", {})) for container in containers(pod))


def _inherited(pod: Pod, holds: Callable[[dict[str, Any]], bool], key: str) -> bool:
    """The pod or each container says it, and no container says otherwise."""
    whole = pod["spec"].get("securityContext", {})
    return _each(pod, lambda own: holds(own) if key in own else holds(whole))


def _hooks(container: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        yield container.get(probe, {})
    yield from container.get("lifecycle", {}).values()


RULES: dict[str, Callable[[Pod], bool]] = {
    "host processes": lambda pod: _all(pod, lambda c: not c.get("windowsOptions", {}).get("hostProcess")),
    "host namespaces": lambda pod: (
        not any(pod["spec"].get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    ),
    "privileged": lambda pod: _each(pod, lambda c: not c.get("privileged")),
    "host ports": lambda pod: (
        not any(port.get("hostPort") for c in containers(pod) for port in c.get("ports", []))
    ),
    "host probes": lambda pod: (
        not any(
            hook.get(kind, {}).get("host")
            for container in containers(pod)
            for hook in _hooks(container)
            for kind in ("httpGet", "tcpSocket")
        )
    ),
    "apparmor": lambda pod: (
        _all(pod, lambda c: c.get("appArmorProfile", {}).get("type", "RuntimeDefault") != "Unconfined")
        and all(
            value == "runtime/default" or value.startswith("localhost/")
            for key, value in pod["metadata"].get("annotations", {}).items()
            if key.startswith("container.apparmor.security.beta.kubernetes.io/")
        )
    ),
    "selinux": lambda pod: _all(
        pod,
        lambda c: (
            c.get("seLinuxOptions", {}).get("type", "") in SELINUX_TYPES
            and not c.get("seLinuxOptions", {}).get("user")
            and not c.get("seLinuxOptions", {}).get("role")
        ),
    ),
    "proc mount": lambda pod: _each(pod, lambda c: c.get("procMount", "Default") == "Default"),
    "sysctls": lambda pod: all(
        sysctl["name"] in SYSCTLS for sysctl in pod["spec"].get("securityContext", {}).get("sysctls", [])
    ),
    "volume types": lambda pod: all(
        set(volume) - {"name"} <= VOLUMES for volume in pod["spec"].get("volumes", [])
    ),
    "privilege escalation": lambda pod: _each(pod, lambda c: c.get("allowPrivilegeEscalation") is False),
    "run as non-root": lambda pod: _inherited(pod, lambda c: c.get("runAsNonRoot") is True, "runAsNonRoot"),
    "run as user": lambda pod: _all(pod, lambda c: c.get("runAsUser") != 0),
    "seccomp": lambda pod: _inherited(
        pod,
        lambda c: c.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
        "seccompProfile",
    ),
    "capabilities": lambda pod: _each(
        pod,
        lambda c: (
            "ALL" in c.get("capabilities", {}).get("drop", [])
            and set(c.get("capabilities", {}).get("add", [])) <= ADDABLE
        ),
    ),
}
