"""The create-only records of runs, read through a memory: what was created never changes.

A record of another owner under one of our names is not ours and is not shown. Thread-safe. Used by `adapter`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic

from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.objects import RunRef, records_path, selector
from trainingrun.cluster.kubernetes.reading import reading
from trainingrun.cluster.kubernetes.records import R, from_object, number, sort, to_object
from trainingrun.ports import Conflict, Refused
from trainingrun.protocol.records import Epoch, Revision

RELIST_SECONDS = 60.0  # so that a gap in the numbers, made by hand, does not hide what comes after it


class RecordStore(Generic[R]):
    """The records of one kind."""

    def __init__(
        self,
        api: Api,
        kind: type[R],
        name: Callable[[str, int], str],  # from (run, number)
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._kind: type[R] = kind
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, dict[int, R]] = {}  # by run uid, by number
        self._listed_at: dict[str, float] = {}  # by run uid

    def all(self, run: RunRef) -> list[R]:
        """Ascending. A LIST the first time and now and then, else a GET of the next numbers. Raises Unavailable."""
        known = self._remembered(run)
        with reading(f"records of {run.key}"):
            if not known or self._clock() - self._listed_at.get(run.uid, float("-inf")) > RELIST_SECONDS:
                found = self._list(run)
            else:
                found = self._next(run, max(known) + 1)
        with self._lock:
            kept = self._known.setdefault(run.uid, {})
            kept.update({number(record): record for record in found})
            return sort(list(kept.values()))

    def known(self, run: RunRef, name: str) -> R | None:
        """The record of this name: from memory if it is there. Raises Unavailable."""
        found = [record for record in self._remembered(run).values() if record.name == name]
        return next((record for record in found or self.all(run) if record.name == name), None)

    def forget_all_but(self, run_uids: set[str]) -> None:
        """Runs that are gone need no memory."""
        with self._lock:
            for uid in set(self._known) - run_uids:
                del self._known[uid]
                self._listed_at.pop(uid, None)

    def _remembered(self, run: RunRef) -> dict[int, R]:
        with self._lock:
            return dict(self._known.get(run.uid, {}))

    def _list(self, run: RunRef) -> list[R]:
        began = self._clock()
        labels = f"{selector(RUN_UID=run.uid)},{Label.RECORD.value}={self._kind.__name__}"
        items = self._api.list(records_path(run.namespace), labels)
        self._listed_at[run.uid] = began
        records = [from_object(self._kind, item, run.uid) for item in items]
        return [record for record in records if record is not None]

    def _next(self, run: RunRef, first: int) -> list[R]:
        found: list[R] = []
        while True:
            item = self._api.get(records_path(run.namespace, self._name(run.name, first + len(found))))
            record = from_object(self._kind, item, run.uid) if item is not None else None
            if record is None:
                return found
            found.append(record)


def create_record(api: Api, record: Revision | Epoch, run: RunRef) -> None:
    """Raises Conflict when the name is taken or the namespace is gone, Refused, and Unavailable."""
    try:
        api.create(records_path(run.namespace), to_object(record, run))
    except Refused as refused:
        if refused.reason == "NotFound":
            raise Conflict(f"{record.name}: namespace {run.namespace} is gone") from refused
        raise
