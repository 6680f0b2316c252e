"""Documents of a source, in a fixed order, read again each time they are asked for.

A document is one text; its name is stable across machines. Called by `prepare` only. Sources never hold a
corpus in memory, and never skip input in silence: what cannot be read is a DataError that names field, value,
file and line.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.errors import DataError
from trainer.uris import NotAPath, local_path

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
FOLDER_SUFFIXES = frozenset({".txt", ".md", ".py"})


@dataclass(frozen=True)
class Document:
    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """One entry of `spec.data.sources` or `spec.data.validation`. `field` is its path in the spec."""

    field: str
    uri: str

    def documents(self) -> Iterator[Document]:
        """Documents that are not empty, in an order that depends on their names only. Raises DataError."""
        for document in self._read():
            if document.text:
                yield document

    def _read(self) -> Iterator[Document]:
        if self.uri in (STDLIB_TRAIN, STDLIB_HELDOUT):
            return stdlib_documents(heldout=self.uri == STDLIB_HELDOUT)
        path = file_path(self.uri, self.field)
        if path.is_dir():
            return self._folder(path)
        if not path.is_file():
            raise DataError(
                self.field, self.uri, f"there is no file {path}", "correct the path, or mount the data"
            )
        return (
            self._json_lines(path)
            if path.suffix == ".jsonl"
            else iter([Document(path.name, self._text(path))])
        )

    def _folder(self, folder: Path) -> Iterator[Document]:
        files = [path for path in folder.rglob("*") if path.suffix in FOLDER_SUFFIXES and path.is_file()]
        names = sorted(path.relative_to(folder).as_posix() for path in files)
        for name in names:
            yield Document(name, self._text(folder / name))

    def _json_lines(self, path: Path) -> Iterator[Document]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Document(f"{path.name}:{number}", self._line(path, number, line))

    def _line(self, path: Path, number: int, line: bytes) -> str:
        fix = 'write one JSON object a line: {"text": "…"}'
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            raise DataError(self.field, self.uri, f"{path}, line {number}: not JSON: {error}", fix) from error
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise DataError(self.field, self.uri, f'{path}, line {number}: no string under "text"', fix)
        return text

    def _text(self, path: Path) -> str:
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"{path}, byte {error.start}: not UTF-8"
            raise DataError(
                self.field, self.uri, problem, "convert the file to UTF-8, or leave it out"
            ) from error
        except OSError as error:
            raise DataError(
                self.field, self.uri, f"{path}: {error.strerror}", "make the file readable"
            ) from error


def file_path(uri: str, field: str) -> Path:
    """The local path of a `file://` or `pvc://` URI. Raises DataError for any other."""
    try:
        return local_path(uri)
    except NotAPath as error:
        fix = f"{error.fix}, or {STDLIB_TRAIN} or {STDLIB_HELDOUT}"
        raise DataError(field, uri, error.problem, fix) from error


def stdlib_documents(*, heldout: bool) -> Iterator[Document]:
    """The running Python's own library: its source files, then its documentation topics.

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
