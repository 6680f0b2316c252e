"""Starts the data process and listens to it. Called by the start of the agent, in its main thread."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainer.agent.endings import BadConfiguration, Broken


class DataProcess:
    def __init__(self, module: str, spec: dict[str, Any], cache_dir: Path) -> None:
        self.activity = "preparing data"
        self.ready = False
        self._buffer = b""
        listen, speak = os.pipe()
        order_read, order_write = os.pipe()
        with os.fdopen(order_read, "rb") as stdin, os.fdopen(speak, "wb") as stdout:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.agent.prepare_data", str(os.getpid())],
                stdin=stdin,
                stdout=stdout,
            )
        os.set_blocking(listen, False)
        self.fd: int | None = listen
        order = {"module": module, "spec": spec, "cacheDir": str(cache_dir)}
        with contextlib.suppress(BrokenPipeError), os.fdopen(order_write, "wb") as pipe:
            pipe.write(json.dumps(order).encode())

    def check(self) -> bool:
        """Read what it said; True once the data are ready. Raises BadConfiguration or Broken."""
        if self.fd is None:
            return self.ready
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.fd, 65536):
                self._hear(chunk)
            self._over()
        return self.ready

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _hear(self, chunk: bytes) -> None:
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.activity = message.get("say", self.activity)
            self.ready = self.ready or bool(message.get("done"))
            if "problem" in message:
                text = f"preparing data: {message['problem']}"
                raise BadConfiguration(text) if message["permanent"] else Broken(text)

    def _over(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        code = self._process.wait()
        if code != 0 and not self.ready:
            raise Broken(f"the process that prepares data ended with exit code {code}")
