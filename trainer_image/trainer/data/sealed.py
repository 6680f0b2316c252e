"""What a folder of the cache says of itself: facts with a hash of their own, and the hashes of its files.

A bit that flips on a disk must never change what is trained in silence, so whoever opens a folder compares its files
with what was written. Called by `row_plan`, `text_cache` and `prepare`. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trainer.data.errors import StoreDamaged
from trainer.data.files import put
from trainer.data.shards import file_sha256


def write_sealed(file: Path, facts: dict[str, Any]) -> None:
    put(file, json.dumps({"facts": facts, "sha256": _hash(facts)}).encode())


def read_sealed(file: Path) -> dict[str, Any]:
    """Raises FileNotFoundError, StoreDamaged; a file of a version that wrote no hash is damaged too."""
    try:
        read: Any = json.loads(file.read_bytes())
    except ValueError as error:
        raise StoreDamaged(file, 0, f"not JSON: {error}") from error
    facts = read.get("facts") if isinstance(read, dict) else None
    if not isinstance(facts, dict) or read.get("sha256") != _hash(facts):
        raise StoreDamaged(file, 0, "its sha256 is not that of its facts")
    return facts


def described(folder: Path, files: list[Path]) -> dict[str, Any]:
    """Of each file, by its name below the folder, what `check_files` compares it with."""
    return {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
        for file in sorted(files)
    }


def check_files(folder: Path, files: dict[str, Any]) -> None:
    """Read all of them, and compare them with what was written. Raises StoreDamaged."""
    for name, wanted in files.items():
        file = folder / name
        there = file.stat().st_size if file.exists() else 0
        if there != wanted["bytes"]:
            raise StoreDamaged(
                file, min(there, wanted["bytes"]), f"{there} bytes, {wanted['bytes']} were written"
            )
        if file_sha256(file) != wanted["sha256"]:
            raise StoreDamaged(file, 0, "its sha256 is not that of what was written")


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
