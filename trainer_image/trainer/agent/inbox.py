"""Where the other threads leave what the main thread must act on: the newest directive, or the order to end.

A directive replaces all before it, so there is no queue. `fd` is readable whenever something came, which lets
the main thread wait for it and for the ranks at once.
"""

from __future__ import annotations

import contextlib
import os
import threading

from trainer.agent.endings import Ending
from trainingrun.protocol.messages import Directive


class Inbox:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._generation = 0  # counts joins: a restarted membership numbers its directives anew
        self._newest = Directive(seq=0)
        self._taken = True
        self._ending: Ending | None = None

    def joined(self) -> None:
        with self._lock:
            self._generation += 1
            self._newest, self._taken = Directive(seq=0), True

    @property
    def position(self) -> tuple[int, int]:
        """(generation, seq) of the newest directive."""
        with self._lock:
            return self._generation, self._newest.seq

    def offer(self, directive: Directive, generation: int) -> None:
        """A directive that was asked for in `generation`; late and repeated ones are dropped."""
        with self._lock:
            if generation != self._generation or directive.seq <= self._newest.seq:
                return
            self._newest, self._taken = directive, False
        self.wake()

    def end(self, ending: Ending) -> None:
        """The first reason to end is the one that counts. Safe in a signal handler of the main thread."""
        if self._ending is None:
            self._ending = ending
        self.wake()

    def take(self) -> Directive | None:
        """The newest directive if it has not been taken yet. Raises the Ending, if there is one."""
        directive = self.peek()
        if directive is not None:
            self.acted_on(directive)
        return directive

    def acted_on(self, directive: Directive) -> None:
        """Take a directive that was peeked at, unless a newer one has come meanwhile."""
        with self._lock:
            self._taken = self._taken or directive is self._newest

    def peek(self) -> Directive | None:
        """As `take`, but leaves the directive to be taken later."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        if self._ending is not None:
            raise self._ending
        with self._lock:
            return None if self._taken else self._newest

    def wake(self) -> None:
        """Make the main thread look around."""
        os.eventfd_write(self.fd, 1)
