"""Repeats what the ranks write to their log files on the agent's standard output, each line as `[rank 3] …`.

Ranks write to files, so a full pipe never holds one up and nothing that it wrote is lost when it is killed; one thread
here follows the files, and only that thread waits when nobody reads our output. Where nobody asked for it, every
method does nothing. Called by the elastic agent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_CHUNK_BYTES = 1 << 18
_LINE_BYTES = 1 << 14  # a longer line, a progress bar say, is cut


@dataclass
class _Followed:
    path: Path
    prefix: bytes
    file: int | None = None  # descriptor, once the rank has made the file
    rest: bytes = b""  # of a line that has not ended yet
    finished: bool = False  # nobody writes to it any more: read to its end once, then forget it


class Echo:
    def __init__(self, wanted: bool, output: int = 1) -> None:
        """`output`: descriptor that the lines go to."""
        self._wanted = wanted
        self._output = output
        self._followed: list[_Followed] = []
        self._changed = threading.Condition()
        self._closed = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        if wanted:
            self._thread.start()

    def follow(self, files: Mapping[int, Path]) -> None:
        """Log files by global rank; they need not be there yet."""
        if self._wanted:
            with self._changed:
                self._followed += [_Followed(path, b"[rank %d] " % rank) for rank, path in files.items()]

    def finish(self) -> None:
        """Those who wrote to the files that are followed now have ended."""
        with self._changed:
            for followed in self._followed:
                followed.finished = True
            self._changed.notify_all()

    def close(self, timeout_seconds: float) -> None:
        """Finish, and wait until everything is written, for a while at most."""
        self.finish()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._wanted:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not any(followed.finished for followed in self._followed):
                    if self._closed:
                        return
                    self._changed.wait(_LOOK_SECONDS)
                now = [(followed, followed.finished) for followed in self._followed]
            for followed, finished in now:
                self._catch_up(followed, finished)
            with self._changed:
                over = {id(followed) for followed, finished in now if finished}
                self._followed = [one for one in self._followed if id(one) not in over]

    def _catch_up(self, followed: _Followed, to_the_end: bool) -> None:
        """Write what is new. `to_the_end`: there will be no more, so a line without an end ends here."""
        if followed.file is None:
            try:
                followed.file = os.open(followed.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # not made yet; or the rank was killed before it was
        try:
            while chunk := os.read(followed.file, _CHUNK_BYTES):
                *lines, followed.rest = (followed.rest + chunk).split(b"\n")
                if len(followed.rest) > _LINE_BYTES:
                    lines, followed.rest = [*lines, followed.rest], b""
                self._write(followed.prefix, lines)
        except OSError as error:
            logger.warning("%s cannot be read any more: %s", followed.path, error)
        if to_the_end:
            self._write(followed.prefix, [followed.rest] if followed.rest else [])
            os.close(followed.file)

    def _write(self, prefix: bytes, lines: list[bytes]) -> None:
        data = memoryview(b"".join(prefix + line + b"\n" for line in lines))
        try:
            while data and not self._broken:
                data = data[os.write(self._output, data) :]
        except OSError as error:
            self._broken = True
            logger.warning("the output of the ranks is not repeated any more: %s", error)
