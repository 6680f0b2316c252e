"""Text that is everywhere where the trainer is: the running Python's own library, in two disjoint parts.

For demonstrations and tests, which must need no download. Called by `sources`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from trainer.data.documents import Document

STDLIB_TRAIN = "python-stdlib:train"
STDLIB_HELDOUT = "python-stdlib:heldout"
# More than this much source would keep two slow cores busy for longer than the demonstration trains.
STDLIB_TRAIN_BYTES = 4_200_000
# Enough that bigram counts of the held-out tokens describe the language, and not only those tokens.
HELDOUT_PERMILLE = 60
# Not prose and not code that a person wrote: tests, installed packages, code tables, the topics' own module.
STDLIB_SKIPPED = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
)


def stdlib_documents(*, heldout: bool) -> Iterator[Document]:
    """Its source files, then its documentation topics.

    About 6 % of the names are held out. The order is that of a hash, so that the cap takes from all parts
    alike.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = _python_files(root)
    size = 0
    for name in sorted(names, key=lambda name: _hash("order", name)):
        if _is_heldout(name) != heldout:
            continue
        text = (root / name).read_bytes().decode("utf-8", "replace")
        size += len(text)
        if not heldout and size > STDLIB_TRAIN_BYTES:
            break
        yield Document(name, text)
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for topic in sorted(topics):
        if _is_heldout(f"topic:{topic}") == heldout:
            yield Document(f"topic:{topic}", topics[topic])


def _python_files(root: Path) -> list[str]:
    names = []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in STDLIB_SKIPPED]  # never descends into them
        names += [
            (Path(folder) / name).relative_to(root).as_posix() for name in files if name.endswith(".py")
        ]
    return names


def _is_heldout(name: str) -> bool:
    return _hash("split", name) % 1000 < HELDOUT_PERMILLE


def _hash(purpose: str, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{purpose}:{name}".encode(), digest_size=8).digest(), "big")
