"""What is mounted into every container: the two Python environments and the checkout.

The environments are made by the project's own tool, but with the Python of the base image, so that the interpreter
they name exists inside.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.harness import cache, layout
from tests.cluster.harness.errors import HarnessError

SOURCES = ("operator", "trainer_image")


def build() -> None:
    """Makes the environments if needed, and byte code of the checkout: pods cannot write any."""
    for kind in ("operator", "trainer"):
        _python(kind)
    compile_sources()


def mounts() -> dict[str, Path]:
    """The name of each folder below /opt/trainingrun, and where it is on the host."""
    return {
        "operator-env": _python("operator").parent.parent,
        "trainer-env": _python("trainer").parent.parent,
        "src": layout.CHECKOUT,
    }


def compile_sources() -> None:
    """Compiles what has changed, and makes the sources readable for the user whom pods run as."""
    command: tuple[str | Path, ...] = (
        layout.CONTAINER_PYTHON,
        "-m",
        "compileall",
        "-q",
        *(layout.CHECKOUT / name for name in SOURCES),
    )
    cache.run(*command, PYTHONDONTWRITEBYTECODE="")
    unreadable = [
        path
        for name in SOURCES
        for path in [layout.CHECKOUT / name, *(layout.CHECKOUT / name).rglob("*")]
        if path.stat().st_mode & (0o005 if path.is_dir() else 0o004) != (0o005 if path.is_dir() else 0o004)
    ]
    if layout.CHECKOUT.stat().st_mode & 0o005 != 0o005:
        unreadable.append(layout.CHECKOUT)
    if unreadable:
        raise HarnessError(
            f"pods run as user {layout.USER} and could not read {unreadable[0]} ({len(unreadable)} such)",
            f"chmod -R o+rX {' '.join(str(layout.CHECKOUT / name) for name in SOURCES)}",
        )


def _python(kind: str) -> Path:
    tool = layout.CHECKOUT / "tools" / "setup_env.py"
    done = subprocess.run(
        [sys.executable, str(tool), kind, "--python", str(layout.CONTAINER_PYTHON)],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise HarnessError(f"the {kind} environment could not be made; its messages are above")
    return Path(done.stdout.strip())
