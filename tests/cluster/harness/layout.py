"""Names, addresses and paths of the test cluster, all in one place.

Names and addresses are machine-wide: only one such cluster can exist on a machine (see `lock`). Everything it
writes is below one state folder; what is built and kept is in tools.cache. Pure: nothing here touches the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
STATE_VARIABLE = "TRAININGRUN_CLUSTER_STATE"
DEFAULT_STATE = Path("/var/lib/trainingrun-cluster")

NAMESPACES = Path("/run/netns")  # where iproute2 keeps named network namespaces
CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "trun-"  # of every network namespace and cgroup folder that is ours
CONTROL_PLANE = "trun-cp"
BRIDGE = "br0"
CNI_NETWORK = "trainingrun"

CONTROL_ADDRESS = "10.200.0.1"
API_PORT = 6443  # in the control plane's network namespace
HOST_API_PORT = 26443  # on 127.0.0.1 of the host, through the relay
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_API_ADDRESS = "10.96.0.1"

BASE_IMAGE = "localhost/trainingrun-base:1"
TRAINER_IMAGE = "localhost/trainingrun-trainer:test"
OPERATOR_IMAGE = "localhost/trainingrun-operator:test"
PAUSE_IMAGE = "localhost/trainingrun-pause:1"
IN_CONTAINERS = Path("/opt/trainingrun")  # environments and checkout, read-only, in every container
CONTAINER_PYTHON = Path("/usr/bin/python3")  # the same path on the host and in the base image


@dataclass(frozen=True)
class Node:
    """One node: its number decides every name and address."""

    number: int
    state: Path

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def link(self) -> str:
        """The control plane's end of the node's only cable."""
        return f"v{self.number}"

    @property
    def address(self) -> str:
        return f"10.200.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        return self.state / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def containerd_root(self) -> Path:
        return self.folder / "containerd" / "root"

    @property
    def containerd_state(self) -> Path:
        return self.folder / "containerd" / "state"

    @property
    def daemons(self) -> tuple[str, str, str]:
        """Names of the node's daemons, in the order in which they start."""
        return (f"containerd-{self.name}", f"kubelet-{self.name}", f"kube-proxy-{self.name}")


@dataclass(frozen=True)
class Layout:
    """Where one cluster lives."""

    state: Path
    node_count: int = 3

    @classmethod
    def chosen(cls, state: Path | None = None) -> Layout:
        """The state folder given, else that of the environment variable, else the default."""
        return cls(state or Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE))

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(number, self.state) for number in range(1, self.node_count + 1))

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def shared(self) -> Path:
        """A folder that every node sees under the same path: for static hostPath volumes."""
        return self.state / "shared"

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator, for use on the host."""
        return self.state / "kubeconfig"

    @property
    def ready(self) -> Path:
        """Exists once `up` has finished."""
        return self.state / "up"

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{HOST_API_PORT}"
