"""The faults that both systems suffer on the cluster, by the same hands: the victim is found first, then hit.

A lost node is cut off before its power fails: otherwise its kernel would still tell every peer that the connections
are closed, as no machine without power does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.harness import Cluster

RANK, PID_1, DELETED = "rank killed", "PID 1 of a pod killed", "pod deleted"
PARTITIONED, OFF = "node partitioned", "node off"
FAULTS = (RANK, PID_1, DELETED, PARTITIONED, OFF)
Hit = Callable[[], object]
"""The fault itself; all that takes time was done before."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault to the first step at any size, and to the first at full size; None: beyond the cap."""

    survivors: float | None
    full: float | None
    steps_lost: int | None


def time_of(hit: Hit) -> float:
    """Does it, and gives the instant before, in seconds since 1970."""
    at = time.time()
    hit()
    return at


def kill(pid: int) -> Hit:
    return lambda: os.kill(pid, signal.SIGKILL)


def kill_first_process(cluster: Cluster, namespace: str, pod: str) -> Hit:
    first = next(each for each in cluster.processes(namespace, pod) if each.inner_pid == 1)
    return kill(first.pid)


def delete_pod(cluster: Cluster, namespace: str, pod: str) -> Hit:
    """As `kubectl delete pod` does, without its wait for the end."""
    return lambda: cluster.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}")


def lose_node(cluster: Cluster, node: str, power: bool) -> Hit:
    def cut() -> None:
        cluster.partition(node)
        if power:
            cluster.power_off(node)

    return cut
