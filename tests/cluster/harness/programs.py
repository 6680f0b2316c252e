"""The programs of Kubernetes, etcd and CoreDNS, compiled once from the Go module in binaries/.

Minutes of work on a small machine, so every finished program is kept; after an interruption the rest is built.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.harness.errors import HarnessError
from tools import cache

MODULE = Path(__file__).parent / "binaries"
PROGRAMS = {
    "coredns": "./coredns",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "etcd": "go.etcd.io/etcd/server/v3",
}


def version() -> str:
    """Kubernetes's version as the module pins it, such as v1.35.4."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise HarnessError(f"{MODULE / 'go.mod'} does not require k8s.io/kubernetes")
    return found[1]


def linker_flags() -> str:
    """Without a stamped version the programs would call themselves v0.0.0 and clients would refuse them."""
    major, minor = version().removeprefix("v").split(".")[:2]
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion={version()} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


def folder() -> Path:
    sources = [MODULE / "go.mod", MODULE / "go.sum", *sorted(MODULE.rglob("*.go"))]
    go = cache.run("go", "env", "GOVERSION", cwd=MODULE).strip()
    return cache.folder(f"bin-{cache.key(go, linker_flags(), *(path.read_bytes() for path in sources))}")


def build() -> Path:
    """The folder of all programs. Raises HarnessError when one does not compile."""
    home = folder()
    missing = [name for name in PROGRAMS if not (home / name).exists()]
    for number, name in enumerate(missing, 1):
        cache.say(f"building {name} ({number} of {len(missing)}; a few minutes in all, once)")
        with cache.publishing(home / name) as draft:
            cache.run(
                *("go", "build", "-trimpath", "-ldflags", linker_flags(), "-o", draft, PROGRAMS[name]),
                cwd=MODULE,
                timeout_seconds=3600,
            )
    return home
