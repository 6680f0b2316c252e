"""Which runs there are, by uid. A uid says for ever which run it is; whether that run still exists is asked for anew.

Thread-safe. Used by the records, whose callers know a run by its uid only, and by the controller's port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.objects import Object, RunRef, metadata, run_ref, runs_path
from trainingrun.cluster.kubernetes.reading import reading
from trainingrun.ports import Unavailable


@dataclass(frozen=True)
class KnownRun:
    ref: RunRef
    deleting: bool  # asked to go; something (a finalizer) keeps it for a while


class RunIndex:
    """`namespaces`: those that are looked after; empty: all. `on_list` is told of every LIST."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        max_age_seconds: float,
        on_list: Callable[[Sequence[Object]], None] = lambda runs: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespaces = tuple(namespaces) or ("",)
        self._max_age = max_age_seconds
        self._on_list = on_list
        self._clock = clock
        self._known: dict[str, KnownRun] = {}
        self._missing: dict[str, float] = {}  # uids that a LIST did not have, and when it was made
        self._listed_at = float("-inf")  # when the newest LIST began
        self._listing = threading.Lock()

    def note(self, item: Object) -> None:
        """A run that somebody has just read."""
        known = KnownRun(run_ref(item), bool(metadata(item).get("deletionTimestamp")))
        self._known[known.ref.uid] = known

    def all(self) -> list[KnownRun]:
        """All runs, by a LIST. Raises Unavailable."""
        with self._listing:
            return self._list()

    def where(self, uid: str) -> RunRef | None:
        """The run that has this uid, or had it lately. Raises Unavailable."""
        known = self._known.get(uid) or self._find(uid)
        return known.ref if known is not None else None

    def alive(self, uid: str) -> RunRef | None:
        """The run that has this uid; None when it is gone, or asked to go: that cannot be taken back.

        While the API server does not answer, a run that was there is there. Raises Unavailable for any other.
        """
        known = self._known.get(uid)
        if known is None or self._clock() - self._listed_at > self._max_age:
            try:
                known = self._find(uid)
            except Unavailable:
                if known is None:
                    raise
        return known.ref if known is not None and not known.deleting else None

    def _find(self, uid: str) -> KnownRun | None:
        """Look in a LIST that began after this call did. A uid is never given twice, so a missing one stays missing."""
        asked_at = self._clock()
        if asked_at - self._missing.get(uid, float("-inf")) <= self._max_age:
            return None
        with self._listing:
            if self._listed_at < asked_at:  # else somebody else has just made it
                self._list()
        known = self._known.get(uid)
        if known is None:
            self._missing[uid] = self._listed_at
        return known

    def _list(self) -> list[KnownRun]:
        began = self._clock()
        items: list[dict[str, Any]] = []
        with reading("runs"):
            for namespace in self._namespaces:
                items += self._api.list(runs_path(namespace), metadata_only=True)
        runs = [KnownRun(run_ref(item), bool(metadata(item).get("deletionTimestamp"))) for item in items]
        self._known = {run.ref.uid: run for run in runs}
        self._missing = {uid: at for uid, at in self._missing.items() if began - at <= self._max_age}
        self._listed_at = began
        self._on_list(items)
        return runs
