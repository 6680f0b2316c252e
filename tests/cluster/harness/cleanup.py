"""What a cluster leaves on the machine, and how it is removed: processes, namespaces, mounts, cgroups, links.

`up` runs this after a predecessor that died; `down` ends with it. It looks only for what is certainly ours: recorded
daemons, names with our prefix, paths below our state folder.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.cluster.harness import cgroups, layout, mounts, network, processes
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.processes import Daemons

CONTAINER_LOGS = Path("/var/log/containers")  # kubelets link every container's log here
CNI_RESULTS = Path("/var/lib/cni/results")
MARKER = ".trainingrun-test-cluster"  # in a state folder that is ours


def namespaces() -> list[str]:
    if not layout.NAMESPACES.is_dir():
        return []
    return sorted(entry.name for entry in layout.NAMESPACES.iterdir() if entry.name.startswith(layout.PREFIX))


def our_processes(cluster: Layout) -> list[int]:
    """Recorded daemons, shims of our containerds, everything in our cgroups and network namespaces."""
    found = {daemon.pid for daemon in Daemons(cluster.pids, cluster.logs).all() if daemon.alive}
    sockets = {str(node.socket) for node in cluster.nodes}
    inodes = {network.path(name).stat().st_ino for name in namespaces()}
    for pid in processes.every_pid():
        words = processes.command_line(pid)
        is_shim = bool(words) and "containerd-shim" in words[0] and bool(sockets & set(words))
        if is_shim or (inodes and processes.network_namespace(pid) in inodes):
            found.add(pid)
    for folder in cgroups.ours():
        found |= cgroups.pids(folder.name)
    return sorted(found)


def links(cluster: Layout) -> list[Path]:
    """Files outside the state folder that name our pods."""
    logs = [
        entry
        for entry in (CONTAINER_LOGS.iterdir() if CONTAINER_LOGS.is_dir() else ())
        if entry.is_symlink() and entry.readlink().is_relative_to(cluster.state)
    ]
    return sorted([*logs, *CNI_RESULTS.glob(f"{layout.CNI_NETWORK}-*")])


def leftovers(cluster: Layout) -> dict[str, list[str]]:
    """All that is on the machine of this cluster, by kind; empty when there is nothing."""
    found = {
        "processes": [
            f"{pid} {' '.join(processes.command_line(pid))[:80]}" for pid in our_processes(cluster)
        ],
        "network namespaces": namespaces(),
        "mounts": [str(point) for point in mounts.below(cluster.state)],
        "cgroups": [str(folder) for folder in cgroups.ours()],
        "files": [str(path) for path in links(cluster)],
    }
    return {kind: items for kind, items in found.items() if items}


def check_folder(cluster: Layout) -> None:
    """Raises HarnessError when the state folder has something that is not ours: it would be removed."""
    folder = cluster.state
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise HarnessError(
            f"the state folder {folder} exists and is not a test cluster's; it would be removed",
            "name another one with --state",
        )


def claim(cluster: Layout) -> None:
    """Makes the state folder and marks it as ours, so that it may be removed as a whole."""
    check_folder(cluster)
    cluster.state.mkdir(parents=True, exist_ok=True)
    (cluster.state / MARKER).touch()


def remove(cluster: Layout, keep_state: bool = False) -> None:
    """Ends and removes all of it, and the state folder unless told to keep it (for its logs)."""
    daemons = Daemons(cluster.pids, cluster.logs)
    cluster.ready.unlink(missing_ok=True)
    names = [daemon.name for daemon in daemons.all()]
    # Kubelets and containerds first and hard: else they would restart or report what is ended after them.
    daemons.stop(
        [name for name in names if name.endswith(tuple(node.name for node in cluster.nodes))], signal.SIGKILL
    )
    daemons.stop(names, signal.SIGTERM, seconds=3.0)
    for _ in range(10):
        pids = our_processes(cluster)
        if not pids:
            break
        processes.kill(pids)
        processes.wait_gone(pids, 2.0)
    mounts.remove_below(cluster.state)
    for name in namespaces():
        network.remove(name)
    for folder in cgroups.ours():
        cgroups.remove(folder.name)
    for path in links(cluster):
        path.unlink(missing_ok=True)
    if not keep_state and (cluster.state / MARKER).exists():
        shutil.rmtree(cluster.state, ignore_errors=True)
