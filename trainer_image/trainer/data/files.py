"""Files and folders that appear whole or not at all, also when nodes share the folder. Standard library only.

What has a lock is made by one process at a time: who holds it may clear away what others left unfinished.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


def beside(path: Path) -> Path:
    """A name for the unfinished `path`, that no process of any node has used."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")


def put(path: Path, data: bytes) -> None:
    temporary = beside(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Held: nobody else makes `folder`, and nothing unfinished of it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def discard(folder: Path) -> None:
    """Take a folder away at once. Who has mapped its files keeps what it has. The lock is held.

    A shared folder may refuse to delete files that are mapped; then they go when the lock is next taken.
    """
    away = beside(folder)
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)
