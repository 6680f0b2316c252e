"""Build (once) and print a small S3 server for tests: `python3 -m tools.s3_server`.

versitygw serves a folder as S3, with conditional puts and multipart uploads; it is compiled from its Go module. The
program lives outside the checkout, under ${XDG_CACHE_HOME:-~/.cache}/trainingrun/tools, keyed by its version and by
Go's. Talk goes to stderr, the path to stdout. Imported by the tests of checkpoints in buckets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.cache import say
from tools.errors import ToolError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingrun"
MODULE = "github.com/versity/versitygw"
VERSION = "v1.8.0"
BUILD_SECONDS = 1800


def s3_server() -> Path:
    """The path of versitygw, built when it is not there. Raises ToolError, with the reason."""
    if not shutil.which("go"):
        raise ToolError("go is not on this machine, and the S3 server is compiled with it", "install Go")
    home = CACHE / "tools" / f"versitygw-{VERSION}-{_go_version()}"
    program = home / "versitygw"
    if program.exists():
        return program
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(home)
    return program


def _go_version() -> str:
    return _go("env", "GOVERSION", seconds=60).strip()


def _build(home: Path) -> None:
    say(f"building {MODULE} {VERSION} (once)")
    scratch = home / "build"
    shutil.rmtree(scratch, ignore_errors=True)
    environment = {"GOBIN": str(scratch), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
    _go("install", f"{MODULE}/cmd/versitygw@{VERSION}", seconds=BUILD_SECONDS, environment=environment)
    (scratch / "versitygw").replace(home / "versitygw")  # complete, or not there
    shutil.rmtree(scratch)


def _go(*arguments: str, seconds: float, environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            ["go", *arguments],
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"go {arguments[0]} did not end within {seconds:.0f} s") from error
    if done.returncode:
        raise ToolError(f"go {' '.join(arguments)} failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def main() -> int:
    try:
        print(s3_server())
    except ToolError as error:
        say(str(error))
        if error.hint:
            say(f"hint: {error.hint}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
