"""A real Kubernetes of three nodes on one Linux machine, for tests: `python -m tests.cluster.harness up`.

The programs are the real ones (API server, scheduler, kubelets, kube-proxy, containerd, runc); only the machines are
pretended: a node is a network namespace with its own containerd and kubelet. Tests use `Cluster`. It needs root and
changes nothing of the machine that `down` does not take back.
"""

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import HarnessError

__all__ = ["Cluster", "HarnessError"]
