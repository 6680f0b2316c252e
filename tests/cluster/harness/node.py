"""One pretended machine: its network, cgroups, containerd, kubelet and kube-proxy; and its sudden end.

A power-off ends everything of the node at once and loses what a real machine would lose: memory, mounts in memory,
network. Disks stay. Starting again leaves it to containerd and kubelet to find out what became of their pods.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.harness import cgroups, mounts, network, node_runtime, processes
from tests.cluster.harness.api import Api, wait_until
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.layout import Layout, Node
from tests.cluster.harness.processes import Daemons
from tools import cache


def configure(node: Node, pki: Path, shared_mounts: Mapping[str, Path]) -> None:
    """Writes the node's configuration files."""
    for folder in (node.folder / "cni", node.folder / "kubelet"):
        folder.mkdir(parents=True, exist_ok=True)
    (node.folder / "containerd.toml").write_text(node_runtime.containerd_toml(node))
    write_spec(node, shared_mounts)
    for name, content in {
        "cni/10-pods.conflist": node_runtime.cni(node),
        "kubelet.json": node_runtime.kubelet_config(node, pki),
        "kube-proxy.json": node_runtime.kube_proxy_config(node, pki),
    }.items():
        (node.folder / name).write_text(json.dumps(content, indent=1))


def write_spec(node: Node, shared_mounts: Mapping[str, Path]) -> bool:
    """Writes what every container of the node starts from; whether that is another than before."""
    path = node.folder / "runtime-spec.json"
    text = json.dumps(node_runtime.runtime_spec(shared_mounts), indent=1)
    if path.exists() and path.read_text() == text:
        return False
    path.write_text(text)
    return True


def refresh(node: Node, daemons: Daemons, shared_mounts: Mapping[str, Path]) -> None:
    """Makes containers that start from now on see `shared_mounts`. Those that run are left as they are."""
    if write_spec(node, shared_mounts) and network.exists(node.namespace):
        cache.say(f"what is mounted has changed: restarting containerd of {node.name}")
        daemons.stop([node.daemons[0]])
        start_containerd(node, daemons)


def start_runtime(node: Node, daemons: Daemons) -> None:
    """Network, cgroups and containerd; returns when containerd answers."""
    network.add_node(node)
    cgroups.make(node.namespace)
    start_containerd(node, daemons)


def start_containerd(node: Node, daemons: Daemons) -> None:
    name = node.daemons[0]
    command: list[str | Path] = ["containerd", "-c", node.folder / "containerd.toml"]
    daemons.start(name, command, network.path(node.namespace))
    try:
        wait_until(f"containerd of {node.name} answers", lambda: answers(node), 30)
    except HarnessError as error:
        raise HarnessError(f"{error}; its log ends: {daemons.log_end(name)}") from error


def answers(node: Node) -> bool:
    if not node.socket.exists():
        return False
    try:
        ctr(node, "version", timeout_seconds=5)
    except HarnessError:
        return False
    return True


def ctr(node: Node, *words: str | Path, timeout_seconds: float = 30.0) -> str:
    """Runs containerd's client for Kubernetes's containers of this node."""
    return cache.run("ctr", "-a", node.socket, "-n", "k8s.io", *words, timeout_seconds=timeout_seconds)


def import_images(node: Node, archive: Path) -> None:
    ctr(node, "images", "import", archive, timeout_seconds=300)


def start_kubernetes(node: Node, pki: Path, daemons: Daemons, programs: Path) -> None:
    """The kubelet and kube-proxy; does not wait for them."""
    _, kubelet, proxy = node.daemons
    namespace = network.path(node.namespace)
    daemons.start(
        kubelet,
        [
            programs / "kubelet",
            f"--config={node.folder / 'kubelet.json'}",
            f"--kubeconfig={pki / f'{node.name}.kubeconfig'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={node.folder / 'kubelet'}",
            f"--cert-dir={node.folder / 'kubelet' / 'pki'}",
            f"--node-labels=topology.kubernetes.io/zone=zone{node.number}",
        ],
        namespace,
    )
    daemons.start(proxy, [programs / "kube-proxy", f"--config={node.folder / 'kube-proxy.json'}"], namespace)


def is_ready(cluster: Layout, node: Node) -> bool:
    """Whether the API server holds the node ready, and the scheduler would use it."""
    found = Api(cluster).get(f"/api/v1/nodes/{node.name}")
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))
    return ready and not found["spec"].get("taints")


def shims(node: Node) -> list[int]:
    """The processes that hold the node's containers for containerd."""
    found = []
    for pid in processes.every_pid():
        words = processes.command_line(pid)
        if words and "containerd-shim" in words[0] and str(node.socket) in words:
            found.append(pid)
    return found


def kill_everything(node: Node, daemons: Daemons) -> None:
    """Ends every process of the node at once; nothing gets a chance to clean up or to report."""
    daemons.stop(list(reversed(node.daemons)), signal.SIGKILL)
    for _ in range(20):
        pids = {*shims(node), *cgroups.pids(node.namespace)}
        if not pids:
            break
        processes.kill(pids)
        processes.wait_gone(sorted(pids), 2.0)
    else:
        raise HarnessError(f"processes of {node.name} do not end: {sorted(pids)}")


def power_off(node: Node, daemons: Daemons) -> None:
    if not network.exists(node.namespace):
        raise HarnessError(f"{node.name} is off already")
    # First: a machine without power does not say goodbye to its peers, as the kernel does for a killed process.
    network.set_cable(node, connected=False)
    kill_everything(node, daemons)
    forget(node)


def forget(node: Node) -> None:
    """Removes what lives only in a machine's memory: mounts, sockets, network, cgroups."""
    mounts.remove_below(node.folder)
    shutil.rmtree(node.containerd_state, ignore_errors=True)
    node.socket.unlink(missing_ok=True)
    if network.exists(node.namespace):
        network.remove_cable(node)
        network.remove(node.namespace)
    cgroups.remove(node.namespace)


def power_on(node: Node, pki: Path, daemons: Daemons, programs: Path) -> None:
    if network.is_plugged(node):
        raise HarnessError(f"{node.name} is on already")
    forget(node)  # what is left of an earlier try
    start_runtime(node, daemons)
    start_kubernetes(node, pki, daemons, programs)


def check_name(cluster: Layout, name: str) -> Node:
    """The node of that name. Raises HarnessError naming those that exist."""
    for node in cluster.nodes:
        if node.name == name:
            return node
    raise HarnessError(f"there is no node {name!r}", f"nodes: {' '.join(n.name for n in cluster.nodes)}")
