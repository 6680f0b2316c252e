"""The environment that libraries expect and a bare container may not have: a name, a home, places to write to.

A container can run with any user number, a read-only image and a HOME that is not there; what its environment already
says well is left alone. Called by `main` before it starts the processes that inherit the environment.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Mapping
from pathlib import Path

USER = "trainer"
# Caches of libraries that would otherwise be below HOME, or below a temporary folder named for the user.
_CACHES = {
    "HF_HOME": "huggingface",
    "MPLCONFIGDIR": "matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
}


def missing(environment: Mapping[str, str], cache_dir: Path) -> dict[str, str]:
    """Variables to set. Makes the folders that they name, below `cache_dir`. Raises OSError when it cannot."""
    found: dict[str, str] = {}
    if not _has_name():
        # getpass.getuser() asks these before it asks for an entry that is not there.
        found |= {name: USER for name in ("LOGNAME", "USER") if not environment.get(name)}
    home = environment.get("HOME", "")
    if not home or not _writable(Path(home)):
        found["HOME"] = str(_made(cache_dir / "home"))
        found |= {
            name: str(cache_dir / folder) for name, folder in _CACHES.items() if not environment.get(name)
        }
    if not any(_writable(Path(folder)) for folder in _temporary_folders(environment)):
        found["TMPDIR"] = str(_made(cache_dir / "tmp"))
    return found


def complete(cache_dir: Path) -> None:
    """Set what is missing, for this process and those that it starts. Raises OSError."""
    os.environ.update(missing(os.environ, cache_dir))
    tempfile.tempdir = None  # it may have looked for a place already


def _has_name() -> bool:
    try:
        return bool(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return False


def _temporary_folders(environment: Mapping[str, str]) -> list[str]:
    """Where Python looks, in its order; the current folder, its last resort, is none to litter."""
    given = [environment[name] for name in ("TMPDIR", "TEMP", "TMP") if environment.get(name)]
    return [*given, "/tmp", "/var/tmp", "/usr/tmp"]


def _writable(folder: Path) -> bool:
    """Asked of the file system itself: what root may do says nothing about a read-only one."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
