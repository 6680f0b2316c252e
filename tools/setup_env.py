"""Create (once) and print an environment for this checkout: `python3 tools/setup_env.py operator|trainer`.

Needs only Python 3.11 with pip. `--python PATH` makes the environment with another Python 3.11 than the one that
runs this: the test cluster does so, because an environment that is mounted into a container must name an interpreter
which exists there. Environments live outside the checkout, under
${XDG_CACHE_HOME:-~/.cache}/trainingrun/envs, keyed by everything that decides their content, so a second checkout
reuses them. They hold dependencies only: the checkout itself goes on PYTHONPATH. Talk goes to stderr, the path of
the environment's Python to stdout.
"""

from __future__ import annotations

import argparse
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


def identity(python: Path | None) -> list[str]:
    """What of the interpreter decides the environment's content: its version, and its path if it is not ours.

    Raises ValueError when `python` does not run or is not Python 3.11, for which the versions are pinned.
    """
    if python is None:
        version, name = sys.version, []
    else:
        command = [str(python), "-c", "import sys; print(sys.version)"]
        try:
            version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise ValueError(f"--python {python} cannot be run: {error}") from error
        name = [str(python)]
    if not version.startswith("3.11."):
        raise ValueError(
            f"{python or 'this'} is Python {version.split()[0]}, but the pinned versions are for 3.11"
        )
    return [version, *name]


def environment(kind: str, other: Path | None = None) -> Path:
    """The Python of the environment `kind` (operator or trainer), made with `other` or the Python running this."""
    interpreter = identity(other)
    constraints = ROOT / "constraints" / f"{kind}.txt"
    wanted = requirements(kind)
    key = hashlib.sha256("\n".join([*interpreter, *wanted, constraints.read_text()]).encode()).hexdigest()[
        :12
    ]
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
        run(installer, "venv", "-q", "--python", other or sys.executable, home)
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
    os.umask(0o022)  # others read it too: containers mount it and run as another user
    parser = argparse.ArgumentParser(prog="setup_env.py")
    parser.add_argument("kind", choices=list(GROUPS))
    parser.add_argument(
        "--python", type=Path, help="the Python 3.11 to make it with (default: the one running this)"
    )
    options = parser.parse_args()
    try:
        print(environment(options.kind, options.python))
    except ValueError as error:
        say(str(error))
        say("hint: make PYTHON=python3.11 …")
        return 2
    except subprocess.CalledProcessError as error:
        say(f"this command failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
