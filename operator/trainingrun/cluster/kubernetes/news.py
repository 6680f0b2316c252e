"""The mailbox between the watch and the control loop: which runs may have changed. Thread-safe; it keeps no objects."""

from __future__ import annotations

import threading
from collections.abc import Collection


class News:
    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._keys: set[str] = set()
        self._all = False
        self._nodes_changed = False

    def run_changed(self, key: str) -> None:
        with self._condition:
            self._keys.add(key)
            self._condition.notify_all()

    def anything_changed(self) -> None:
        with self._condition:
            self._all = True
            self._condition.notify_all()

    def nodes_changed(self) -> None:
        """A node came, went, or is another: it may concern any run."""
        with self._condition:
            self._nodes_changed = True
            self._all = True
            self._condition.notify_all()

    def take_nodes_changed(self) -> bool:
        """Whether a node changed since the last call."""
        with self._condition:
            changed, self._nodes_changed = self._nodes_changed, False
            return changed

    def wait(self, timeout_seconds: float) -> Collection[str] | None:
        """Keys of runs that may have changed, None for any run; empty when nothing was heard for so long."""
        with self._condition:
            self._condition.wait_for(lambda: self._all or self._keys, timeout_seconds)
            keys, everything = self._keys, self._all
            self._keys, self._all = set(), False
            return None if everything else keys
