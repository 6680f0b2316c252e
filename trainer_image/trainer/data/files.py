"""Files and folders that appear whole or not at all, also when nodes share the folder. Standard library only."""

from __future__ import annotations

import os
import secrets
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
