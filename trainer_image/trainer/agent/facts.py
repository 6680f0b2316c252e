"""What the agent can read about its node without loading a framework: the device, and who was killed for
memory.
"""

from __future__ import annotations

from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")
_CGROUPS = Path("/sys/fs/cgroup")


def device(gpus: Path = _GPUS) -> str:
    """The accelerator's model, or "cpu"."""
    for information in sorted(gpus.glob("*/information")):
        for line in information.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                return value.strip()
    return "cpu"


def oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """How often the kernel killed a process of this container for memory; 0 where that cannot be read."""
    for path in _counters(membership, root):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return 0


def _counters(membership: Path, root: Path) -> list[Path]:
    """Files that may hold the counter, of cgroup versions 2 and 1: this group's and, in a container, the
    root's.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = group.lstrip("/")
        if controllers == "":
            found += [root / group / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [root / "memory" / group / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return found
