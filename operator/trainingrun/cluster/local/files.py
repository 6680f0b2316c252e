"""Atomic files: the few ways in which the local cluster writes to disk.

A reader sees a whole file or none, whenever the writer is killed. That holds for the death of any program,
not for the loss of the machine's power: nothing is synced, because what must outlive the machine is in the
checkpoints.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainingrun.api.errors import UserError
from trainingrun.ports import Conflict


class StateDamaged(UserError):
    """A file of the state directory that cannot be read as what it must be."""


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _write_temporary(path: Path, value: Any) -> Path:
    temporary = _temporary(path)
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    return temporary


def create_only(path: Path, value: Any) -> None:
    """Create `path` with the JSON of `value`, or raise Conflict when it exists. Never overwrites."""
    temporary = _write_temporary(path, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise Conflict(f"{path} exists") from None
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def replace(path: Path, value: Any) -> None:
    """Put the JSON of `value` at `path`. Raises FileNotFoundError when its folder is gone."""
    temporary = _write_temporary(path, value)
    try:
        temporary.replace(path)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def create_folder(path: Path, files: dict[str, Any]) -> None:
    """Create the folder `path` with these JSON files in it, all at once, or raise Conflict when it exists."""
    temporary = _temporary(path)
    temporary.mkdir()
    for name, value in files.items():
        (temporary / name).write_text(json.dumps(value, indent=1) + "\n")
    try:
        temporary.rename(path)  # fails on a folder that is not empty, and ours never is
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():
            raise Conflict(f"{path} exists") from None
        raise


def remove_folder(path: Path) -> None:
    """Remove the folder `path`, all at once for every reader. One that is gone already is fine."""
    gone = _temporary(path)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def read(path: Path) -> Any:
    """The JSON at `path`, or None when there is no such file."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise StateDamaged(
            f"{path} is not JSON ({error}); was it edited by hand?\n"
            "  hint: mend it, or remove the run's folder to begin anew"
        ) from None


def names(folder: Path) -> list[str]:
    """Sorted names in `folder`; temporary ones (a dot in front) are left out. Empty when it is gone."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path`. The kernel frees it when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold(path: Path) -> int | None:
    """Take the lock file `path` until the descriptor that is returned is closed; None when it is held."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock file. Two that look do not see each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
