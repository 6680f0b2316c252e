"""Certificates and kubeconfigs of the cluster: one authority, one identity for each program and node.

They are made anew by every `up`. The private keys never leave the state folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import kubeconfigs, layout
from tests.cluster.harness.layout import Layout
from tools import cache

DAYS = "365"


@dataclass(frozen=True)
class Identity:
    name: str
    subject: str
    names: tuple[str, ...] = ()  # subject alternative names, as openssl writes them


def identities(cluster: Layout) -> list[Identity]:
    api_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    api_addresses = ("127.0.0.1", layout.CONTROL_ADDRESS, layout.SERVICE_API_ADDRESS)
    api = (*(f"DNS:{name}" for name in api_names), *(f"IP:{address}" for address in api_addresses))
    return [
        Identity("apiserver", "/CN=kube-apiserver", api),
        Identity("apiserver-kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client"),
        Identity("admin", "/O=system:masters/CN=admin"),
        Identity("controller-manager", "/CN=system:kube-controller-manager"),
        Identity("scheduler", "/CN=system:kube-scheduler"),
        Identity("kube-proxy", "/CN=system:kube-proxy"),
        *(
            Identity(
                node.name,
                f"/O=system:nodes/CN=system:node:{node.name}",
                (f"DNS:{node.name}", f"IP:{node.address}"),
            )
            for node in cluster.nodes
        ),
    ]


def make(cluster: Layout) -> None:
    """Makes everything below the state folder's pki."""
    folder = cluster.pki
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *(
            "-keyout",
            folder / "ca.key",
            "-out",
            folder / "ca.crt",
            "-days",
            DAYS,
            "-subj",
            "/CN=test-cluster",
        ),
    )
    _openssl("genrsa", "-out", folder / "service-account.key", "2048")
    _openssl("rsa", "-in", folder / "service-account.key", "-pubout", "-out", folder / "service-account.pub")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda identity: _sign(folder, identity), identities(cluster)))
    in_cluster = f"https://{layout.CONTROL_ADDRESS}:{layout.API_PORT}"
    for name in ("admin", "controller-manager", "scheduler", "kube-proxy", *(n.name for n in cluster.nodes)):
        kubeconfigs.write(folder / f"{name}.kubeconfig", in_cluster, folder / "ca.crt", _user(folder, name))
    kubeconfigs.write(cluster.kubeconfig, cluster.api_url, folder / "ca.crt", _user(folder, "admin"))


def _user(folder: Path, name: str) -> dict[str, str]:
    return {"client-certificate": str(folder / f"{name}.crt"), "client-key": str(folder / f"{name}.key")}


def _sign(folder: Path, identity: Identity) -> None:
    request, extensions = folder / f"{identity.name}.csr", folder / f"{identity.name}.ext"
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", folder / f"{identity.name}.key", "-out", request, "-subj", identity.subject),
    )
    extensions.write_text(f"subjectAltName={','.join(identity.names)}\n" if identity.names else "")
    serial = "0x" + os.urandom(8).hex()
    _openssl(
        *("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"),
        *(
            "-set_serial",
            serial,
            "-out",
            folder / f"{identity.name}.crt",
            "-days",
            DAYS,
            "-extfile",
            extensions,
        ),
    )
    request.unlink()
    extensions.unlink()


def _openssl(*words: str | Path) -> None:
    command: Sequence[str | Path] = ("openssl", *words)
    cache.run(*command, timeout_seconds=60)
