"""The memory of what the API server refused, by run and seat: nothing in the world tells of a pod that was never made.

It may get lost: a restarted controller tries once more at once. Written by `reconcile`, forgotten by `loop`;
decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainingrun.control.observed import Observed, Refusal
from trainingrun.ports import Refused, RunObject

RECORD = -1
"""Stands for the slot where a record was refused, not a pod."""


class RefusalBook:
    def __init__(self) -> None:
        self._runs: dict[str, tuple[str, dict[int, Refusal]]] = {}  # by key: uid of the run, refusals by slot

    def of(self, run: RunObject) -> Mapping[int, Refusal]:
        """Refused pods of this very run by slot, and its record as slot RECORD. A copy."""
        uid, found = self._runs.get(run.key, ("", {}))
        return dict(found) if uid == run.uid else {}

    def note(self, observed: Observed, slot: int, error: Refused, now: float) -> None:
        """One more refusal in a row."""
        run = observed.run
        if self._runs.get(run.key, ("", {}))[0] != run.uid:
            self._runs[run.key] = (run.uid, {})
        found = self._runs[run.key][1]
        before = found.get(slot)
        found[slot] = Refusal(
            reason=error.reason,
            message=error.message,
            count=1 if before is None else before.count + 1,
            since=now if before is None else before.since,
            at=now,
            generation=run.generation,
            beside=observed.counting,
        )

    def accepted(self, run: RunObject, slot: int) -> None:
        uid, found = self._runs.get(run.key, ("", {}))
        if uid == run.uid:
            found.pop(slot, None)
            if not found:
                del self._runs[run.key]

    def forget(self, keys: Iterable[str]) -> None:
        """Runs that are gone."""
        for key in list(keys):
            self._runs.pop(key, None)

    def keys(self) -> set[str]:
        return set(self._runs)
