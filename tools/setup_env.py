"""Create (once) and print an environment for this checkout: `python3 tools/setup_env.py operator|trainer`.

Needs only Python 3.11 with pip. Environments live outside the checkout, under
${XDG_CACHE_HOME:-~/.cache}/trainingrun/envs, keyed by everything that decides their content, so a second checkout
reuses them. They hold dependencies only: the checkout itself goes on PYTHONPATH. Talk goes to stderr, the path of
the environment's Python to stdout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingrun"
UV_VERSION = "0.13.9"
GROUPS = {"operator": "dev", "trainer": "trainer-dev"}


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


def requirements(kind: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [*project["project"]["optional-dependencies"][kind], *project["dependency-groups"][GROUPS[kind]]]


def uv() -> Path:
    home = CACHE / f"uv-{UV_VERSION}"
    binary = home / "bin" / "uv"
    if not binary.exists():
        say(f"installing uv {UV_VERSION}")
        run(sys.executable, "-m", "venv", "--clear", home)
        run(
            home / "bin" / "python",
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"uv=={UV_VERSION}",
        )
    return binary


def environment(kind: str) -> Path:
    constraints = ROOT / "constraints" / f"{kind}.txt"
    wanted = requirements(kind)
    key = hashlib.sha256("\n".join([sys.version, *wanted, constraints.read_text()]).encode()).hexdigest()[:12]
    home = CACHE / "envs" / f"{kind}-{key}"
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "complete").exists():
            return python
        shutil.rmtree(home, ignore_errors=True)
        installer = uv()
        say(f"creating the {kind} environment (once)")
        run(installer, "venv", "-q", "--python", sys.executable, home)
        # Without byte code an import of torch takes many times longer, and every restart would pay for it.
        run(
            installer,
            "pip",
            "install",
            "-q",
            "--compile-bytecode",
            "--python",
            python,
            "-c",
            constraints,
            *wanted,
        )
        (home / "complete").touch()
    return python


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in GROUPS:
        say(f"usage: setup_env.py {'|'.join(GROUPS)}")
        return 2
    if sys.version_info[:2] != (3, 11):
        say(f"Python {sys.version.split()[0]} runs this, but the pinned versions are for Python 3.11")
        say("hint: make PYTHON=python3.11 …")
        return 2
    try:
        print(environment(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        say(f"this command failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
