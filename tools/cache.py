"""What is built once and kept: folders and files named by everything that decides their content.

A thing appears under its name only when it is complete (made beside it, then renamed), so an interrupted build
leaves nothing that looks finished. Called by everything that builds: the images that are checked, the test cluster.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.errors import ToolError

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainingrun" / "cluster"


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def key(*parts: str | bytes) -> str:
    """A short name for this content."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


def folder(name: str) -> Path:
    path = FOLDER / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def builder() -> Iterator[None]:
    """One builder at a time; the others wait and then find everything made."""
    with (folder(".") / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """A path beside `target` to make it under; it becomes `target` when the block ends without an error."""
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield draft
        draft.replace(target)
    finally:
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def run(*command: str | Path, cwd: Path | None = None, timeout_seconds: float = 1800.0, **extra: str) -> str:
    """Runs a program and gives its stdout. Raises ToolError with the end of its stderr."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=os.environ | extra,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except FileNotFoundError as error:
        raise ToolError(f"the program {words[0]} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{' '.join(words[:6])} did not end within {timeout_seconds:.0f} s") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip()[-600:]
        raise ToolError(f"{' '.join(words[:8])} failed with exit code {done.returncode}: {last}")
    return done.stdout
