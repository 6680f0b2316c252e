"""The sources of a run: what is at a URI, as documents in a fixed order or as a token store.

Documents are read again each time they are asked for; their names are stable across machines. Called by
`prepare` and by `python -m trainer.data.write`. Sources never hold a corpus in memory, and never skip input in
silence: what cannot be read is a DataError that names field, value, file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.documents import DEFAULT_COLUMN, SUFFIXES, Document, Place, file_documents
from trainer.data.errors import DataError
from trainer.data.remote import Remote, RemoteFile, is_remote
from trainer.data.stdlib import STDLIB_HELDOUT, STDLIB_TRAIN, stdlib_documents
from trainer.uris import NotAPath, local_path

TEXT = "Text"
TOKENS = "Tokens"
FORMATS = (TEXT, TOKENS)


@dataclass
class Source:
    """One entry of `spec.data.sources` or `spec.data.validation`. `field` is the path of its URI in the spec."""

    field: str
    uri: str
    cache_dir: Path | None = None  # for copies of remote files; a source on this machine needs none
    format: str = TEXT
    name: str = ""
    column: str = DEFAULT_COLUMN

    def __post_init__(self) -> None:
        self._remote: tuple[Remote, list[RemoteFile]] | None = None

    def documents(self) -> Iterator[Document]:
        """Documents that are not empty, in an order that depends on their names only. Raises DataError,
        SourceAway.
        """
        for document in self.all_documents():
            if document.text:
                yield document

    def all_documents(self) -> Iterator[Document]:
        """The empty ones too."""
        if self.uri in (STDLIB_TRAIN, STDLIB_HELDOUT):
            yield from stdlib_documents(heldout=self.uri == STDLIB_HELDOUT)
            return
        for path, name in self._files():
            yield from file_documents(path, name, self._place)

    @property
    def _place(self) -> Place:
        return Place(self.field, self.uri, self.column)

    def _files(self) -> Iterator[tuple[Path, str]]:
        """(where it is on this machine, its name below the source); remote ones are fetched as they come."""
        if is_remote(self.uri):
            if self._remote is None:  # listed once, so that all passes see the same files
                if self.cache_dir is None:
                    raise ValueError(f"{self.uri}: a remote source needs a folder for its copies")
                remote = Remote(self.field, self.uri, self.cache_dir)
                self._remote = remote, remote.files(SUFFIXES)
            remote, files = self._remote
            for file in files:
                yield remote.copy(file), file.name
            return
        path = file_path(self.uri, self.field)
        if path.is_dir():
            found = [one for one in path.rglob("*") if one.name.endswith(SUFFIXES) and one.is_file()]
            for name in sorted(one.relative_to(path).as_posix() for one in found):
                yield path / name, name
        elif path.is_file():
            yield path, path.name
        else:
            raise DataError(
                self.field, self.uri, f"there is no file {path}", "correct the path, or mount the data"
            )


def spec_sources(spec: dict[str, Any], part: str, cache_dir: Path) -> list[Source]:
    """The sources of `spec.data.<part>`. Raises DataError."""
    found = []
    for number, entry in enumerate(spec["data"].get(part) or []):
        field = f"spec.data.{part}[{number}]"
        kind = entry.get("format", TEXT)
        if kind not in FORMATS:
            fix = f"use {' or '.join(FORMATS)}"
            raise DataError(f"{field}.format", kind, "not a format that this trainer reads", fix)
        if kind == TOKENS and entry["uri"] in (STDLIB_TRAIN, STDLIB_HELDOUT):
            raise DataError(f"{field}.format", kind, f"{entry['uri']} is text", f"use {TEXT}")
        found.append(Source(f"{field}.uri", entry["uri"], cache_dir, kind, str(entry.get("name", ""))))
    return found


def file_path(uri: str, field: str) -> Path:
    """The local path of a `file://` or `pvc://` URI. Raises DataError for any other."""
    try:
        return local_path(uri)
    except NotAPath as error:
        fix = f"{error.fix}, or {STDLIB_TRAIN} or {STDLIB_HELDOUT}"
        raise DataError(field, uri, error.problem, fix) from error
