"""Images built by buildah in a storage of their own, which disappears with the scratch folder. Used by check_images.

Builds use chroot isolation, which works in a container too; nothing is pulled: the base is made from a tar. What pip
of this machine needs (its configuration, certificates) is mounted into the build and does not become part of an image.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import cache
from tools.errors import ToolError

PROGRAMS = ("buildah", "runc", "debootstrap")  # each in a Debian package of its name
PLACE, PREFIX = Path("/var/tmp"), "trainingrun-images-"
NEEDED_BYTES = 16 << 30  # layers are committed while the container is still there
BASE = "localhost/trainingrun-base:check"
FOR_PIP = ("/etc/ssl/certs", "/etc/pip.conf")
POLICY = {"default": [{"type": "insecureAcceptAnything"}]}  # nothing comes from outside


@dataclass(frozen=True)
class Built:
    """An image, mounted."""

    name: str
    rootfs: Path
    environment: dict[str, str]
    user: int
    total_bytes: int
    top_bytes: int  # of the layers after the dependencies


def install() -> None:
    """Raises ToolError when a program is missing and cannot be installed."""
    if os.geteuid() != 0:
        raise ToolError(
            "images are built and mounted by root", "run it as root, on a machine or VM of its own"
        )
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ToolError(f"these programs are missing, and this is no Debian: {' '.join(missing)}")
    cache.say(f"installing {' '.join(missing)}")
    cache.run("apt-get", "update", "-q")
    cache.run(
        "apt-get",
        "install",
        "-q",
        "-y",
        "--no-install-recommends",
        *missing,
        DEBIAN_FRONTEND="noninteractive",
    )


class Store:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "policy.json").write_text(json.dumps(POLICY))

    def run(self, command: str, *arguments: str | Path) -> str:
        where = (
            "--root",
            self._folder / "storage",
            "--runroot",
            self._folder / "run",
            "--storage-driver",
            "overlay",
        )
        return cache.run(
            "buildah", *where, command, *arguments, timeout_seconds=3600.0, BUILDAH_ISOLATION="chroot"
        ).strip()

    def add_base(self, tar: Path) -> None:
        container = self.run("from", "scratch")
        self.run("add", "-q", container, tar, "/")
        self._commit(container, BASE)

    def build(self, name: str, dockerfile: str, context: Path) -> None:
        """From `dockerfile`, with a layer for each step. Raises ToolError."""
        mounts = [f"--volume={path}:{path}:ro" for path in FOR_PIP if Path(path).exists()]
        policy = ("--signature-policy", str(self._folder / "policy.json"))
        self.run(
            *("bud", "--layers", "--pull-never", *policy, *mounts, "--build-arg", f"BASE={BASE}"),
            *("-f", str(context / dockerfile), "-t", _tag(name), str(context)),
        )

    @contextmanager
    def mounted(self, name: str) -> Iterator[Built]:
        described = json.loads(self.run("inspect", "--type", "image", _tag(name)))["OCIv1"]
        config = described["config"]
        container = self.run("from", "--pull-never", _tag(name))
        rootfs = Path(self.run("mount", container))
        sizes = self._layer_sizes(described["rootfs"]["diff_ids"])
        try:
            yield Built(
                name=name,
                rootfs=rootfs,
                environment=dict(item.split("=", 1) for item in config["Env"]),
                user=int(config["User"].partition(":")[0]),
                total_bytes=sum(sizes),
                # The greatest layer is that of the dependencies.
                top_bytes=sum(sizes[sizes.index(max(sizes)) + 1 :]),
            )
        finally:
            self.run("umount", container)
            self.run("rm", container)

    def clear(self) -> None:
        """Removes all containers and images."""
        self.run("rm", "--all")
        self.run("rmi", "--all", "--force")

    def _commit(self, container: str, tag: str) -> None:
        self.run("commit", "-q", "--rm", "--signature-policy", self._folder / "policy.json", container, tag)

    def _layer_sizes(self, diff_ids: list[str]) -> list[int]:
        known = json.loads((self._folder / "storage" / "overlay-layers" / "layers.json").read_text())
        sizes = {
            layer["diff-digest"]: int(layer.get("diff-size", 0)) for layer in known if "diff-digest" in layer
        }
        return [sizes[digest] for digest in diff_ids]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """One at a time on a machine. What a dead predecessor left is removed first.

    Raises ToolError when the disk has too little room.
    """
    with (cache.folder("images") / "check.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for old in PLACE.glob(f"{PREFIX}*"):
            _remove(old)
        if (free := shutil.disk_usage(PLACE).free) < NEEDED_BYTES:
            raise ToolError(
                f"{PLACE} has {free >> 30} GiB free, and building the images takes {NEEDED_BYTES >> 30} GiB"
            )
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        path.chmod(0o755)  # other users look into it, from containers
        try:
            yield path
        finally:
            _remove(path)


def _remove(folder: Path) -> None:
    """With whatever is still mounted below it, or the mounts' contents would be removed instead."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([path for path in mounts if Path(path).is_relative_to(folder)]):
        cache.run("umount", mount)
    shutil.rmtree(folder)


@contextmanager
def opened(scratch: Path, base: Path) -> Iterator[Store]:
    """A storage in `scratch` that has the base image, whose tar is `base`."""
    store = Store(scratch)
    try:
        store.add_base(base)
        yield store
    finally:
        store.clear()


def _tag(name: str) -> str:
    return f"localhost/trainingrun-{name}:check"
