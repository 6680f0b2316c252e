"""The order in which a cluster starts: what can go on at the same time does.

Called by `Cluster.up`, which has built everything and cleaned the machine. When something does not start, what runs
is left for `logs`; the next `up` or `down` removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.harness import cleanup, control_plane, lock, network, node, pki
from tests.cluster.harness.api import wait_until
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.layout import Layout, Node
from tests.cluster.harness.processes import Daemons

NODE_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Parts:
    """What is built once: the folder of the programs, the archive of the images, what containers see mounted."""

    programs: Path
    images: Path
    mounts: Mapping[str, Path]


def start(cluster: Layout, parts: Parts) -> None:
    """Returns when every node is ready. Raises HarnessError naming what did not start."""
    daemons = Daemons(cluster.pids, cluster.logs)
    cleanup.claim(cluster)
    cluster.shared.mkdir()
    cluster.shared.chmod(0o777)
    with lock.hold(cluster.state) as held, ThreadPoolExecutor(len(cluster.nodes)) as pool:
        network.add_switch()
        control_plane.start_relay(daemons, held)
        for each in cluster.nodes:
            node.configure(each, cluster.pki, parts.mounts)
        runtimes = [pool.submit(_start_runtime, each, daemons, parts.images) for each in cluster.nodes]
        pki.make(cluster)
        control_plane.start_stores(cluster, daemons, parts.programs)
        control_plane.start_rest(cluster, daemons, parts.programs)
        for each, runtime in zip(cluster.nodes, runtimes, strict=True):
            runtime.result()
            node.start_kubernetes(each, cluster.pki, daemons, parts.programs)
    wait_nodes_ready(cluster, daemons)
    cluster.ready.touch()


def _start_runtime(each: Node, daemons: Daemons, archive: Path) -> None:
    node.start_runtime(each, daemons)
    node.import_images(each, archive)


def wait_nodes_ready(cluster: Layout, daemons: Daemons) -> None:
    """Raises HarnessError with the end of the kubelet's log when a node does not become ready."""
    for each in cluster.nodes:
        ready = partial(node.is_ready, cluster, each)
        try:
            wait_until(f"{each.name} becomes ready", ready, NODE_READY_SECONDS)
        except HarnessError as error:
            raise HarnessError(f"{error}; its log ends: {daemons.log_end(each.daemons[1])}") from error
