"""The warm fork server, as the agent sees it: started first of all, watched always, replaced when it dies.

It is multiprocessing's own fork server, which loads the training code once; a rank is then a fork of it that
needs milliseconds. All of this happens in the agent's main thread: the server dies with the thread that
started it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal

from trainer.agent import server_environment
from trainer.agent.endings import Broken

logger = logging.getLogger(__name__)

_FIRST, _LAST = "trainer.agent.warm_first", "trainer.agent.warm_last"
_PIPE_BYTES = 65536


class WarmServer:
    def __init__(self, rank_module: str) -> None:
        self._rank_module = rank_module
        self._pipe: int | None = None
        self._pipe_end: int | None = None
        self._pidfd: int | None = None
        self.pid = 0
        self.ready = False
        self.import_seconds = 0.0

    def start(self) -> None:
        """Start it, or start it anew after its death. Returns at once; `ready` follows."""
        self._close()
        self.ready = False
        self._pipe, self._pipe_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.environ[server_environment.AGENT_PID] = str(os.getpid())
        os.environ[server_environment.RANK_MODULE] = self._rank_module
        os.environ[server_environment.READY_PIPE] = f"/proc/{os.getpid()}/fd/{self._pipe_end}"
        os.environ.setdefault(
            "OPENBLAS_NUM_THREADS", "1"
        )  # numpy would start its threads when it is imported
        multiprocessing.set_forkserver_preload([_FIRST, _LAST])
        multiprocessing.forkserver.ensure_running()
        self.pid = server_pid()
        self._pidfd = os.pidfd_open(self.pid)

    def fds(self) -> list[int]:
        """Readable when there is something for `check` to find."""
        return [fd for fd in (self._pidfd, self._pipe) if fd is not None]

    def check(self) -> bool:
        """Whether it is ready. Replaces it when it died. Raises Broken when it cannot load the code."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):
                if answer := os.read(self._pipe, _PIPE_BYTES):
                    self._hear(json.loads(answer))
        if self.died():
            if not self.ready:
                raise Broken("the fork server died while it loaded the training code (out of memory?)")
            logger.warning("the fork server died; starting another")
            self.start()
        return self.ready

    def kill(self) -> None:
        """With all that it has forked; `check` starts another."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd or 0, signal.SIGKILL)

    def died(self) -> bool:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            return os.waitid(os.P_PIDFD, self._pidfd or 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def _hear(self, answer: dict[str, object]) -> None:
        self._close_pipe()
        if answer["problem"]:
            raise Broken(f"the training code {self._rank_module} cannot be imported:\n{answer['problem']}")
        self.import_seconds = float(str(answer["seconds"]))
        self.ready = True
        if answer["threads"] != 1:
            logger.warning(
                "the fork server has %s threads; only one of them exists in the ranks", answer["threads"]
            )
        logger.info("fork server %d is warm after %.1f s of imports", self.pid, self.import_seconds)

    def _close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._close_pipe()

    def _close_pipe(self) -> None:
        for fd in (self._pipe, self._pipe_end):
            if fd is not None:
                os.close(fd)
        self._pipe = self._pipe_end = None


def server_pid() -> int:
    """0 when there is none. multiprocessing keeps it to itself, and has no other way to watch the server."""
    return int(multiprocessing.forkserver._forkserver._forkserver_pid or 0)  # type: ignore[attr-defined]
