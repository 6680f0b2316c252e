"""Files of a source at s3:// or http(s)://, through fsspec, with copies on this machine.

A copy is named by what the server says identifies the content (size and ETag, or time of change), so that changed
content is another file, and what is there is whole. Files are fetched one by one, when they are read. Credentials
are those that the process finds by itself (environment, service account). Called by `sources` and `remote_store`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainer.data.errors import DataError, SourceAway
from trainer.data.files import beside, put
from trainer.data.shards import file_sha256

log = logging.getLogger(__name__)

SCHEMES = {
    "s3": "s3fs",
    "http": "aiohttp",
    "https": "aiohttp",
}  # scheme -> the package that fsspec needs for it
RETRY_SECONDS = (0.5, 2.0, 8.0)
# While training: an outage of minutes is waited for rather than answered with a restart. The other ranks wait in their
# collective for up to ten minutes.
PATIENT_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0)
_CHUNK_BYTES = 8 << 20
_VALIDATORS = ("ETag", "etag", "LastModified", "Last-Modified", "mtime", "Content-MD5")

T = TypeVar("T")


def is_remote(uri: str) -> bool:
    scheme, colon, _ = uri.partition("://")
    return bool(colon) and scheme in SCHEMES


@dataclass(frozen=True)
class RemoteFile:
    path: str  # as fsspec has it
    name: str  # below the source's URI
    size: int | None
    version: str  # "" when the server does not say

    def key(self, uri: str) -> str:
        identity = f"{uri}\n{self.name}\n{self.size}\n{self.version}"
        return hashlib.sha256(identity.encode()).hexdigest()[:40]


class Remote:
    """What is at a URI: one file, or (s3:// only) a folder of them."""

    def __init__(self, field: str, uri: str, cache_dir: Path, *, patient: bool = False) -> None:
        """`patient`: wait longer for a server that does not answer. Raises DataError when this machine cannot read
        such URIs.
        """
        self._patient = patient
        self.field = field
        self.uri = uri
        self._cache = cache_dir / "remote"
        scheme = uri.partition("://")[0]
        package = SCHEMES[scheme]
        if importlib.util.find_spec(package) is None:
            problem = f"{scheme}:// needs the Python package {package}, which this trainer does not have"
            fix = f"use an image with {package}, or copy the data to a volume and name it pvc://CLAIM/PATH"
            raise DataError(field, uri, problem, fix)
        fsspec = importlib.import_module("fsspec")
        self._fs, self._root = fsspec.core.url_to_fs(uri)
        self._trouble = _trouble()
        self._fetched: dict[str, Path] = {}

    def files(self, suffixes: tuple[str, ...]) -> list[RemoteFile]:
        """The files with these endings, by name; the URI's own file whatever its ending. Raises DataError,
        SourceAway.
        """
        if self.uri.startswith("s3://"):
            found = self._ask(lambda: self._fs.find(self._root, detail=True))
            chosen = [self._file(info) for path, info in sorted(found.items()) if path == self._root]
            chosen = chosen or [
                self._file(info) for path, info in sorted(found.items()) if path.endswith(suffixes)
            ]
        else:
            chosen = [self.file("")]
        if not chosen:
            fix = f"name a file, or a folder with files that end with {', '.join(suffixes)}"
            raise DataError(self.field, self.uri, "nothing to read is there", fix)
        return chosen

    def file(self, name: str) -> RemoteFile:
        """A file below the URI, or the URI's own. Raises DataError when it is not there, SourceAway."""
        path = f"{self._root.rstrip('/')}/{name}" if name else self._root
        return self._file(self._ask(lambda: self._fs.info(path)), path)

    def bytes_of(self, name: str) -> bytes:
        """A small file, whole. Raises DataError, SourceAway."""
        path = f"{self._root.rstrip('/')}/{name}"
        return bytes(self._ask(lambda: self._fs.cat_file(path)))

    def part(self, file: RemoteFile, start: int, end: int) -> tuple[int, bytes]:
        """(offset, bytes) that cover [start, end): those, or the whole file from a server that gives no parts."""
        data = bytes(self._ask(lambda: self._fs.cat_file(file.path, start=start, end=end)))
        if len(data) == end - start:
            return start, data
        if len(data) == file.size:
            return 0, data
        raise SourceAway(self._name(file), f"gave {len(data)} bytes for the {end - start} from byte {start}")

    def copy(self, file: RemoteFile) -> Path:
        """The file on this machine, fetched unless it is there. Raises DataError, SourceAway."""
        key = file.key(self.uri)
        place = self._cache / "files" / key[:2] / (key + Path(file.name or file.path).suffix)
        sum_file = place.with_name(f"{place.name}.sha256")
        known = self._fetched.get(key) or (place if file.version and _is_whole(place, sum_file) else None)
        if known is not None and known.exists():
            self._fetched[key] = known
            return known
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = beside(place)
        try:
            self._ask(lambda: self._download(file, temporary))
            sha256 = file_sha256(temporary)
            temporary.replace(place)
            put(sum_file, sha256.encode())
        finally:
            temporary.unlink(missing_ok=True)
        self._fetched[key] = place
        return place

    def _download(self, file: RemoteFile, place: Path) -> None:
        size = 0
        with self._fs.open(file.path, "rb", cache_type="readahead") as source, place.open("wb") as copy:
            while chunk := source.read(_CHUNK_BYTES):
                copy.write(chunk)
                size += len(chunk)
        if file.size is not None and size != file.size:
            raise SourceAway(self._name(file), f"ended after {size} of {file.size} bytes")

    def _file(self, info: dict[str, Any], path: str = "") -> RemoteFile:
        path = path or str(info["name"])
        name = path.removeprefix(self._root).strip("/") or path.rsplit("/", 1)[-1].partition("?")[0]
        version = next((str(info[key]) for key in _VALIDATORS if info.get(key)), "")
        return RemoteFile(path, name, info.get("size"), version)

    def _name(self, file: RemoteFile) -> str:
        return self.uri if self._root == file.path else f"{self.uri.rstrip('/')}/{file.name}"

    def _ask(self, question: Callable[[], T]) -> T:
        """Asks, again after pauses. What is not there, or not allowed, is an answer; the rest is trouble."""
        for wait in PATIENT_RETRY_SECONDS if self._patient else RETRY_SECONDS:
            try:
                return self._ask_once(question)
            except SourceAway as error:
                log.warning("%s; asked again in %g s", error, wait)
                time.sleep(wait)
        return self._ask_once(question)

    def _ask_once(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except FileNotFoundError as error:
            raise self._missing(error) from error
        except PermissionError as error:
            raise self._forbidden(error) from error
        except self._trouble as error:
            raise SourceAway(self.uri, f"{type(error).__name__}: {error}") from error

    def _missing(self, error: FileNotFoundError) -> Exception:
        """fsspec says so of every web page that it did not get; only its cause says why."""
        cause = error.__cause__
        status = getattr(cause, "status", None)
        if status in (401, 403):
            return self._forbidden(error)
        if isinstance(cause, self._trouble) and status not in (404, 410):
            return SourceAway(self.uri, f"{type(cause).__name__}: {cause}")
        return DataError(self.field, self.uri, f"there is no {error}", "correct the address")

    def _forbidden(self, error: OSError) -> Exception:
        fix = "let the pod's service account read it; secrets are not supported yet"
        return DataError(self.field, self.uri, f"may not be read: {error}", fix)


def _is_whole(copy: Path, sum_file: Path) -> bool:
    """A copy of a process before this one is what was fetched; one without a hash may be anything."""
    if not copy.exists() or not sum_file.exists():
        return False
    return file_sha256(copy).encode() == sum_file.read_bytes()


def _trouble() -> tuple[type[Exception], ...]:
    """What the libraries that are there raise when a server or the network fails."""
    kinds: list[type[Exception]] = [OSError, TimeoutError]
    for module, names in (
        ("aiohttp", ("ClientError",)),
        ("botocore.exceptions", ("BotoCoreError", "ClientError")),
    ):
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            found = importlib.import_module(module)
            kinds += [getattr(found, name) for name in names]
    return tuple(kinds)
