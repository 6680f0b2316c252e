"""The control plane's daemons: etcd, API server, controller manager, scheduler, DNS, and the relay to the host.

All run in the control plane's network namespace. Times that decide how soon a node counts as lost are shorter than
Kubernetes's defaults; everything else is left as it comes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tests.cluster.harness import layout, network
from tests.cluster.harness.api import Api, wait_until
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.processes import Daemons
from tools import cache

NODE_GRACE_PERIOD = "16s"
NODE_MONITOR_PERIOD = "2s"
ETCD = "http://127.0.0.1:2379"
RELAY = "relay"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
DAEMONS = ("etcd", API_SERVER, CONTROLLER_MANAGER, "kube-scheduler", "coredns", RELAY)


def commands(cluster: Layout, programs: Path) -> dict[str, list[str | Path]]:
    """The command line of each daemon, without the relay."""
    pki = cluster.pki
    service_account = pki / "service-account.pub"
    return {
        "etcd": [
            programs / "etcd",
            *("--data-dir", cluster.state / "etcd"),
            *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
            "--unsafe-no-fsync",
        ],
        API_SERVER: [
            programs / API_SERVER,
            f"--etcd-servers={ETCD}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={layout.CONTROL_ADDRESS}",
            f"--secure-port={layout.API_PORT}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={service_account}",
            f"--service-account-signing-key-file={service_account.with_suffix('.key')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={layout.SERVICE_RANGE}",
            "--endpoint-reconciler-type=lease",
        ],
        CONTROLLER_MANAGER: [
            programs / CONTROLLER_MANAGER,
            *_identity(pki / "controller-manager.kubeconfig"),
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={service_account.with_suffix('.key')}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            f"--node-monitor-grace-period={NODE_GRACE_PERIOD}",
            f"--node-monitor-period={NODE_MONITOR_PERIOD}",
        ],
        "kube-scheduler": [
            programs / "kube-scheduler",
            *_identity(pki / "scheduler.kubeconfig"),
            "--leader-elect=false",
        ],
        "coredns": [programs / "coredns", "-conf", cluster.state / "Corefile"],
    }


def _identity(kubeconfig: Path) -> Sequence[str]:
    options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{option}={kubeconfig}" for option in options]


def corefile(cluster: Layout) -> str:
    return f""".:53 {{
    bind {layout.CONTROL_ADDRESS}
    errors
    ready {layout.CONTROL_ADDRESS}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {cluster.pki / "admin.kubeconfig"} test
        pods insecure
        ttl 5
    }}
}}
"""


def start_relay(daemons: Daemons, lock: TextIO) -> None:
    """Starts the relay, which from now on holds the machine-wide lock."""
    try:
        listening = network.listener("127.0.0.1", layout.HOST_API_PORT)
    except OSError as error:
        raise HarnessError(
            f"port {layout.HOST_API_PORT} of 127.0.0.1 is taken by another program: {error}"
        ) from error
    with listening:
        relay = Path(__file__).with_name("relay.py")
        words: list[str | Path] = [
            sys.executable,
            relay,
            str(listening.fileno()),
            "127.0.0.1",
            str(layout.API_PORT),
        ]
        keep = (listening.fileno(), lock.fileno())
        daemons.start(RELAY, words, network.path(layout.CONTROL_PLANE), keep=keep)


def start_stores(cluster: Layout, daemons: Daemons, programs: Path) -> None:
    """etcd and the API server, which take the longest."""
    for name in ("etcd", API_SERVER):
        start(cluster, daemons, programs, name)


def start_rest(cluster: Layout, daemons: Daemons, programs: Path) -> None:
    """Waits for the API server, then starts what talks to it."""
    wait_ready(cluster, daemons)
    with cache.publishing(cluster.state / "Corefile") as draft:
        draft.write_text(corefile(cluster))
    for name in (CONTROLLER_MANAGER, "kube-scheduler", "coredns"):
        start(cluster, daemons, programs, name)


def start(cluster: Layout, daemons: Daemons, programs: Path, name: str) -> None:
    command = commands(cluster, programs)[name]
    daemons.start(name, command, network.path(layout.CONTROL_PLANE))


def wait_ready(cluster: Layout, daemons: Daemons, timeout_seconds: float = 90.0) -> None:
    """Raises HarnessError with the end of the log when the API server does not become ready."""
    try:
        wait_until("the API server becomes ready", Api(cluster).ready, timeout_seconds)
    except HarnessError as error:
        raise HarnessError(f"{error}; its log ends: {daemons.log_end(API_SERVER)}") from error
