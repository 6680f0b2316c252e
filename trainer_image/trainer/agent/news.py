"""What this node tells membership: the state of the agent, and the report made from it at any moment.

Phase, epoch and evidence are set by the main thread, what is at the checkpoint location by the survey. A
change wakes the reporting thread at once, unless it is a quiet one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainer.job import Mailbox
from trainingrun.protocol.messages import AgentPhase, DurableCheckpoint, HeldSnapshot, Report
from trainingrun.protocol.records import RankExit


@dataclass(frozen=True)
class State:
    phase: AgentPhase = AgentPhase.PREPARING
    epoch: int = 0  # of the ranks that run or ran last
    prepared: str = ""
    activity: str = ""
    damaged: tuple[str, ...] = ()  # found by ranks that read them
    unreadable: tuple[str, ...] = ()  # found by the survey: their manifest is not whole
    exits: tuple[RankExit, ...] = ()
    durable: tuple[DurableCheckpoint, ...] = ()
    location_fresh: bool = False
    mailbox: Mailbox | None = None
    leaving: bool = False


class News:
    def __init__(self, session: str, slot: int, held: Callable[[], tuple[HeldSnapshot, ...]]) -> None:
        self._session = session
        self._slot = slot
        self._held = held
        self._changed = threading.Condition()
        self._state = State()
        self._version = 0
        self._delivered = 0

    @property
    def state(self) -> State:
        with self._changed:
            return self._state

    def change(self, *, quietly: bool = False, **fields: Any) -> int:
        """Set fields of the state and return its version. `quietly` leaves it to the next regular report."""
        with self._changed:
            state = replace(self._state, **fields)
            if state != self._state:
                self._state = state
                if not quietly:
                    self._version += 1
                    self._changed.notify_all()
            return self._version

    def running_epoch(self) -> int:
        state = self.state
        return state.epoch if state.phase is AgentPhase.RUNNING else 0

    def compose(self) -> tuple[int, Report]:
        """(version, report): the state, and what ranks and snapshot folder say at this moment."""
        with self._changed:
            version, state = self._version, self._state
        progress, activity = None, state.activity
        if state.mailbox is not None:
            progress = state.mailbox.progress()
            activity = activity or (state.mailbox.activity() if state.phase is AgentPhase.RUNNING else "")
        return version, Report(
            session=self._session,
            slot=self._slot,
            phase=state.phase,
            epoch=state.epoch,
            prepared=state.prepared,
            activity=activity,
            snapshots=self._held(),
            durable=state.durable,
            location_fresh=state.location_fresh,
            damaged=tuple(sorted({*state.damaged, *state.unreadable})),
            exits=state.exits,
            progress=progress,
            leaving=state.leaving,
        )

    def delivered(self, version: int) -> None:
        with self._changed:
            self._delivered = max(self._delivered, version)
            self._changed.notify_all()

    def forget_deliveries(self) -> None:
        """After a join: whoever answers now has heard nothing yet."""
        with self._changed:
            self._delivered = -1
            self._changed.notify_all()

    def wait_for_news(self, timeout_seconds: float) -> None:
        """Until the state is newer than what was delivered, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > self._delivered, timeout_seconds)

    def wait_delivered(self, version: int, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._delivered >= version, timeout_seconds)
