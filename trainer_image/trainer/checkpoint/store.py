"""Where checkpoints are kept, as a port: a folder or a bucket behind the few things that checkpoints need.

A store promises: what `create` and `writing` have finished is durable and whole; `create` never replaces; names are
listed as they are now, never from a cache. Whatever goes wrong is an OSError, a file that is not there a
FileNotFoundError. Paths are relative to the location, with "/". Called by everything in this package that touches a
location; `as_store` takes a folder for a store. No torch.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.errors import ConfigError
from trainer.uris import S3, NotAPath, bucket_of, local_path, uri_of
from trainingrun.protocol.checkpoints import TRASH

LOCATION_FIELD = "spec.checkpoint.location.uri"
# Of writes of 2 MiB and more the kernel keeps the pages in pieces that size, which a virtual machine may have to get
# back from its host first: then they take twice as long.
PART_BYTES = 1 << 20
_BUFFERS_AT_ONCE = os.sysconf("SC_IOV_MAX")
_FOR_GOOD = frozenset(  # trying again does not help; everything else may be a file system that is away
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@dataclass(frozen=True)
class Stat:
    size: int
    modified: float  # seconds since 1970
    version: str  # another one when the content is another


WriteAt = Callable[[int, Sequence[bytes | memoryview]], None]  # buffers one after another, from an offset on


class Store(Protocol):
    @property
    def uri(self) -> str:
        """As a person outside of the pod knows it."""

    def where(self, path: str) -> str:
        """A file, for a person."""

    def names(self, folder: str = "") -> list[str]:
        """Files and folders in `folder`, sorted; none when it is not there."""

    def stat(self, path: str) -> Stat: ...

    def read(self, path: str) -> bytes: ...

    def read_into(self, path: str, start: int, buffer: memoryview) -> int:
        """How many bytes: fewer than fit when the file ends before."""

    def create(self, path: str, content: bytes) -> bool:
        """Whole and durable, or False when it is there already. Never seen half written."""

    @property
    def part_bytes(self) -> int:
        """What is best written at a time; a multiple of a block."""

    def writing(self, path: str) -> AbstractContextManager[WriteAt]:
        """A new file, durable once the block has ended without an error. Its parts, of `part_bytes` each but the last,
        may be written in any order, by several threads.
        """

    def make_folder(self, folder: str = "", *, new: bool = False) -> None:
        """`new`: it must not be there yet. A store without folders does nothing."""

    def settle(self, folder: str) -> None:
        """The names in `folder` are durable after this."""

    def remove(self, path: str) -> None:
        """Gone after this, also when it was not there."""

    def discard(self, folder: str) -> None:
        """Remove a folder with all that is in it; nobody can commit into what is left of it."""

    def sweep(self) -> None:
        """Remove what removals that were killed have left."""

    def begun(self) -> list[str]:
        """Folders that `names` does not show, because nothing in them was ever finished."""


@dataclass(frozen=True)
class PathStore:
    root: Path

    @property
    def uri(self) -> str:
        return uri_of(self.root.absolute())

    def where(self, path: str) -> str:
        return str(self.root / path)

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except FileNotFoundError:
            return []

    def stat(self, path: str) -> Stat:
        found = (self.root / path).stat()
        return Stat(found.st_size, found.st_mtime, f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}")

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def read_into(self, path: str, start: int, buffer: memoryview) -> int:
        with (self.root / path).open("rb", buffering=0) as file:
            file.seek(start)
            done = 0
            while got := file.readinto(buffer[done:]):
                done += got
        return done

    def create(self, path: str, content: bytes) -> bool:
        target = self.root / path
        temporary = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)
        return True

    @property
    def part_bytes(self) -> int:
        return PART_BYTES

    @contextmanager
    def writing(self, path: str) -> Iterator[WriteAt]:
        with (self.root / path).open("xb", buffering=0) as file:
            yield functools.partial(_write_at, file.fileno())
            os.fsync(file.fileno())

    def make_folder(self, folder: str = "", *, new: bool = False) -> None:
        if new:
            (self.root / folder).mkdir()
            sync_folder((self.root / folder).parent)
        else:
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def settle(self, folder: str) -> None:
        sync_folder(self.root / folder)

    def remove(self, path: str) -> None:
        target = self.root / path
        target.unlink(missing_ok=True)
        if target.parent.is_dir():
            sync_folder(target.parent)

    def discard(self, folder: str) -> None:
        trash = self.root / f"{TRASH}{folder}.{secrets.token_hex(4)}"
        try:
            (self.root / folder).rename(trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self) -> None:
        for folder in self.root.glob(f"{TRASH}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def begun(self) -> list[str]:
        return []


def _write_at(descriptor: int, at: int, buffers: Sequence[bytes | memoryview]) -> None:
    start, left = at, [memoryview(buffer) for buffer in buffers]
    while left:
        done = os.pwritev(descriptor, left[:_BUFFERS_AT_ONCE], at)
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    # Linux takes this for the order to begin writing to disk: at the sync there is little left to wait for.
    os.posix_fadvise(descriptor, start, at - start, os.POSIX_FADV_DONTNEED)


Place = Store | Path


def as_store(place: Place) -> Store:
    return PathStore(place) if isinstance(place, Path) else place


@functools.lru_cache(maxsize=8)
def store_of(uri: str) -> Store:
    """The store of a checkpoint location. Raises ConfigError for a URI that is none."""
    try:
        if uri.startswith(S3):
            from trainer.checkpoint.s3_store import S3Store

            return S3Store(*bucket_of(uri))
        return PathStore(local_path(uri))
    except NotAPath as error:
        raise ConfigError(LOCATION_FIELD, uri, error.problem, error.fix) from error


def open_place(field: str, place: Place) -> None:
    """Make the folder, and prove that files can be made and removed in it. `field` of the spec names it.

    Raises ConfigError where that can never work, and OSError where it may work later.
    """
    store = as_store(place)
    probe = f".probe.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        store.make_folder()
        store.create(probe, b"")
        store.remove(probe)
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise ConfigError(
            field,
            store.uri,
            f"not a folder that can be written to: {error.strerror or error}",
            "use one that every node may write to",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
