"""What is mounted into every container: the two Python environments and the checkout.

The environments are made by the project's own tool, but with the Python of the base image, so that the interpreter
they name exists inside. A checkout that only its owner may read (a strict umask, a private folder) is copied: pods run
as another user.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.harness import layout
from tests.cluster.harness.errors import HarnessError
from tools import cache

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
        "src": _sources(),
    }


def compile_sources() -> None:
    """Compiles what has changed since the last time; a copy is made anew."""
    folder = _sources()
    if folder != layout.CHECKOUT:
        _copy(folder)
    command: tuple[str | Path, ...] = (layout.CONTAINER_PYTHON, "-m", "compileall", "-q")
    cache.run(*command, *(folder / name for name in SOURCES), PYTHONDONTWRITEBYTECODE="")


def _sources() -> Path:
    """The checkout itself, so that an edit is seen by the next process in a pod, or the place of its copy."""
    names = [layout.CHECKOUT, *(layout.CHECKOUT / name for name in SOURCES)]
    paths = [path for name in names[1:] for path in name.rglob("*")]
    if all(_is_readable(path) for path in [*names, *paths]):
        return layout.CHECKOUT
    return cache.folder(f"checkout-{cache.key(str(layout.CHECKOUT))}")


def _is_readable(path: Path) -> bool:
    needed = 0o005 if path.is_dir() else 0o004
    return path.stat().st_mode & needed == needed


def _copy(target: Path) -> None:
    """In place: containers that run have the folder itself mounted."""
    for name in SOURCES:
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(layout.CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


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
