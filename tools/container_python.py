#!/usr/bin/env python3
"""Stands in for a Python: runs the same command as `python` in a container of a built image, and becomes it.

Strict as a restricted pod is: read-only root, the image's own user, no capabilities, no new privileges, own PID
namespace (so that an agent is PID 1), /tmp in memory. What a kubelet mounts is mounted: the folders that an agent's
environment names, and the file for its last words. Started by check_images, and through it by a local node as the
Python of the trainer; ENV_CONTAINER names a JSON file with a `Container`. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ENV_CONTAINER = "TRAININGRUN_CHECK_CONTAINER"
AGENT_FOLDERS = ("TRAININGRUN_LOG_DIR", "TRAININGRUN_SNAPSHOT_DIR", "TRAININGRUN_CACHE_DIR")
AGENT_SPEC = "TRAININGRUN_SPEC_FILE"
LAST_WORDS = "TRAININGRUN_TERMINATION_LOG"
NAMESPACES = ("pid", "ipc", "uts", "mount")  # the network is the machine's: membership listens on 127.0.0.1
HOSTNAME = "worker"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"
MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True)
class Container:
    rootfs: str  # where the image is mounted
    environment: dict[str, str]  # the image's
    user: int  # the image's; also its group
    scratch: str  # bundles and the state of runc go here
    writable: tuple[str, ...] = ()  # folders of the host, at the same paths in the container
    readable: tuple[str, ...] = ()


def save(container: Container, file: Path) -> None:
    file.write_text(json.dumps(asdict(container)))


def load(file: Path) -> Container:
    return Container(**json.loads(file.read_text()))


def specification(
    container: Container, command: list[str], environment: dict[str, str], hosts: Path
) -> dict[str, Any]:
    """The OCI runtime specification; `environment` is the caller's, of which the project's variables pass.

    `hosts` becomes /etc/hosts, which a kubelet gives too: images have none.
    """
    passed = {name: value for name, value in environment.items() if name.startswith(("TRAININGRUN_", "OMP_"))}
    writable = [*container.writable, *(passed[name] for name in AGENT_FOLDERS if name in passed)]
    readable = [*container.readable, *([passed[AGENT_SPEC]] if AGENT_SPEC in passed else [])]
    words = [passed[LAST_WORDS]] if LAST_WORDS in passed else []
    return {
        "ociVersion": "1.0.2",
        "process": {
            "args": command,
            "cwd": "/tmp",
            "env": [f"{name}={value}" for name, value in {**container.environment, **passed}.items()],
            "user": {"uid": container.user, "gid": container.user},
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": container.rootfs, "readonly": True},
        "hostname": HOSTNAME,
        "mounts": [
            *_SYSTEM_MOUNTS,
            *(_bind(path, "rw") for path in (*writable, *words)),
            *(_bind(path, "ro") for path in readable),
            {**_bind(str(hosts), "ro"), "destination": "/etc/hosts"},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in NAMESPACES],
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
        },
    }


def _mount(kind: str, path: str, *options: str) -> dict[str, Any]:
    return {"type": kind, "source": kind, "destination": path, "options": ["nosuid", *options]}


def _bind(path: str, mode: str) -> dict[str, Any]:
    options = ["rbind", "nosuid", "nodev", mode]
    return {"type": "bind", "source": path, "destination": path, "options": options}


_SYSTEM_MOUNTS = (
    _mount("proc", "/proc", "noexec", "nodev"),
    _mount("tmpfs", "/dev", "strictatime", "mode=755", "size=65536k"),
    _mount("devpts", "/dev/pts", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
    _mount("tmpfs", "/dev/shm", "noexec", "nodev", "mode=1777", "size=65536k"),
    _mount("mqueue", "/dev/mqueue", "noexec", "nodev"),
    _mount("sysfs", "/sys", "noexec", "nodev", "ro"),
    _mount("tmpfs", "/tmp", "nodev", "mode=1777"),
)


def prepare(container: Container, environment: dict[str, str]) -> None:
    """Makes what a kubelet makes for a pod, owned by the container's user."""
    for name in AGENT_FOLDERS:
        if folder := environment.get(name):
            Path(folder).mkdir(parents=True, exist_ok=True)
            shutil.chown(folder, container.user, container.user)
    if file := environment.get(LAST_WORDS):
        Path(file).touch()
        shutil.chown(file, container.user, container.user)


def main() -> None:
    container = load(Path(os.environ[ENV_CONTAINER]))
    prepare(container, dict(os.environ))
    name = f"check-{uuid.uuid4().hex[:12]}"
    bundle = Path(container.scratch) / name
    bundle.mkdir(parents=True)
    hosts = bundle / "hosts"
    hosts.write_text(HOSTS)
    config = specification(container, ["python", *sys.argv[1:]], dict(os.environ), hosts)
    (bundle / "config.json").write_text(json.dumps(config))
    os.execvp("runc", [*runc(Path(container.scratch)), "run", "--bundle", str(bundle), name])


def runc(scratch: Path) -> list[str]:
    """The command, with its state in `scratch`."""
    return ["runc", "--root", str(scratch / "runc")]


if __name__ == "__main__":
    main()
