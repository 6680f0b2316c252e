"""The machine's own programs that the cluster needs. Debian packages are installed only when one of their programs is
missing, and it is said. kubectl and helm are no packages of Debian: see tools.setup_tools.
"""

from __future__ import annotations

import os
import shutil

from tests.cluster.harness.errors import HarnessError
from tools import cache

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
