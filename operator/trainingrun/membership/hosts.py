"""Carries out what the state machines decide: creates records, wakes polls, keeps time. Decides nothing.

One `RunHost` for each run, made when its first agent joins and rebuilt from the records after a restart.
Everything runs in one event loop; only the calls to the records run in threads, so a state machine is never
entered twice. Called by `server`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from trainingrun.membership.clock import Clock
from trainingrun.membership.errors import RecordsUnavailable, RunGone
from trainingrun.membership.settings import Settings
from trainingrun.membership.state import CreateEpoch, RunState
from trainingrun.ports import Conflict, Records, Refused, Unavailable
from trainingrun.protocol.messages import (
    Directive,
    DurableCheckpoint,
    JoinReply,
    JoinRequest,
    Poll,
    Report,
    RunView,
)
from trainingrun.protocol.records import Epoch, Revision

log = logging.getLogger("trainingrun.membership")


def random_nonce() -> str:
    return secrets.token_hex(8)


class RunHost:
    def __init__(
        self, run_uid: str, records: Records, settings: Settings, clock: Clock, started_at: float, name: str
    ) -> None:
        self.run_uid = run_uid
        self.name = name
        self._records = records
        self._clock = clock
        self._poll_seconds = settings.poll_seconds
        self._state = RunState(
            name, run_uid, settings, random_nonce, started_at, 1 + secrets.randbelow(1 << 30)
        )
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")  # when the newest reading of the records began
        self._changed = asyncio.Event()
        self._version = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[str, asyncio.BaseTransport] = {}  # by session: of the newest poll
        self.used_at = clock.now()

    # requests

    async def join(self, request: JoinRequest) -> JoinReply:
        # A pod is made after its revision, so what is read now is new enough for it.
        await self.refresh(self._clock.now())
        reply = self._state.join(request, self._clock.now(), self._clock.wall())
        self._carry_out()
        return reply

    def report(self, report: Report) -> Directive:
        try:
            return self._state.report(report, self._clock.now(), self._clock.wall())
        finally:
            self._carry_out()

    async def poll(
        self, poll: Poll, closing: asyncio.Event, connection: asyncio.BaseTransport | None
    ) -> Directive:
        """Held until there is news. A cancelled handler is a closed connection.

        The connection is watched after the answer too: an agent may die between two polls, and often does, because the
        loss of its ranks is news by which its poll is answered.
        """
        directive = self._state.poll(poll, self._clock.now())
        if connection is not None:
            self._connections[poll.session] = connection
        self._carry_out()
        try:
            async with asyncio.timeout(self._poll_seconds):
                while directive.seq <= poll.seen and not closing.is_set():
                    await self._changed.wait()
                    directive = self._state.directive(poll.session)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._state.connection_closed(poll.session, self._clock.now())
            raise
        return self._state.directive(poll.session)

    def seat_of(self, session: str) -> tuple[int, int] | None:
        return self._state.seat_of(session)

    def view(self) -> RunView:
        """As of now: nobody keeps the time of a run without members, and the tick of another may be late."""
        self.tick()
        return self._state.view(self._clock.now())

    # time and records

    @property
    def gone(self) -> bool:
        return self._state.gone

    @property
    def needs_ticks(self) -> bool:
        return self._state.needs_ticks

    def tick(self) -> None:
        for session in [one for one, connection in self._connections.items() if connection.is_closing()]:
            del self._connections[session]
            self._state.connection_closed(session, self._clock.now())
        self._state.tick(self._clock.now(), self._clock.wall())
        self.used_at = self._clock.now()
        self._carry_out()

    async def refresh(self, not_before: float) -> None:
        """Read the records, unless somebody began to read them after `not_before` (monotonic seconds)."""
        async with self._reading:
            if self._read_at > not_before:
                return
            began = self._clock.now()
            try:
                name, revisions, epochs, saved = await asyncio.to_thread(self._read)
            except Unavailable as error:
                raise RecordsUnavailable(f"the records of this run cannot be read now: {error}") from error
            self._read_at = began
        if name is None:
            log.info("run %s: is gone; its members leave", self.name)
            self._state.run_gone()
            self._carry_out()
            raise RunGone(f"there is no run with uid {self.run_uid}")
        self._state.load(revisions, epochs, self._clock.now(), self._clock.wall(), saved)
        self._carry_out()

    def _read(self) -> tuple[str | None, list[Revision], list[Epoch], DurableCheckpoint | None]:
        name = self._records.run_exists(self.run_uid)
        if name is None:
            return None, [], [], None
        epochs = list(self._records.epochs(self.run_uid, self._state.epoch))
        revisions = list(self._records.revisions(self.run_uid))
        return name, revisions, epochs, self._records.saved_checkpoint(self.run_uid)

    def wake(self) -> None:
        """Let every held poll look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _carry_out(self) -> None:
        for effect in self._state.take_effects():
            if isinstance(effect, CreateEpoch):
                self._spawn(effect.record)
            else:
                log.info("run %s: %s", self.name, effect.text)
        if self._state.version != self._version:
            self._version = self._state.version
            self.wake()

    def _spawn(self, record: Epoch) -> None:
        task = asyncio.create_task(self._create(record))
        self._tasks.add(task)
        task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A defect of the adapter must not leave the run without its next epoch for ever.
            log.error("run %s: creating a record failed", self.name, exc_info=error)
            self._state.creation_failed(repr(error), self._clock.now(), self._clock.wall())

    async def _create(self, record: Epoch) -> None:
        try:
            existing = await asyncio.to_thread(self._create_or_read, record)
        except Unavailable as error:
            self._state.creation_failed(str(error), self._clock.now(), self._clock.wall())
        except Refused as refused:
            self._state.creation_refused(refused.message, self._clock.now(), self._clock.wall())
        else:
            now, wall = self._clock.now(), self._clock.wall()
            if existing is None:
                self._state.created(record, now, wall)
            elif existing.epoch == record.epoch:
                self._state.conflicted(existing, now, wall)
        self._carry_out()

    def _create_or_read(self, record: Epoch) -> Epoch | None:
        """None when it was created; otherwise the record that has its number."""
        try:
            self._records.create(record)
        except Conflict as error:
            for existing in self._records.epochs(self.run_uid, record.epoch - 1):
                if existing.epoch == record.epoch:
                    return existing
            raise Unavailable(f"the name {record.name} is taken by a record of another run") from error
        return None


class Hosts:
    """The runs that this process serves."""

    def __init__(self, records: Callable[[], Records], settings: Settings, clock: Clock) -> None:
        self._make_records = records
        self.settings = settings
        self._clock = clock
        self._started_at = clock.now()
        self._hosts: dict[str, RunHost] = {}
        self._opening = asyncio.Lock()
        self._wanted = asyncio.Event()

    async def get(self, run_uid: str) -> RunHost:
        """The host of a run, made from its records if need be. Raises RunGone, RecordsUnavailable."""
        host = self._hosts.get(run_uid)
        if host is None:
            async with self._opening:
                host = self._hosts.get(run_uid) or await self._open(run_uid)
        self._wanted.set()
        return host

    async def _open(self, run_uid: str) -> RunHost:
        records = self._make_records()
        try:
            name = await asyncio.to_thread(records.run_exists, run_uid)
        except Unavailable as error:
            raise RecordsUnavailable(f"the records of this run cannot be read now: {error}") from error
        if name is None:
            raise RunGone(f"there is no run with uid {run_uid}")
        host = RunHost(run_uid, records, self.settings, self._clock, self._started_at, name)
        await host.refresh(self._clock.now())
        self._hosts[run_uid] = host
        return host

    def known(self, run_uid: str) -> RunHost | None:
        return self._hosts.get(run_uid)

    def wake_all(self) -> None:
        for host in self._hosts.values():
            host.wake()

    async def keep_time(self) -> None:
        """Tick every run that has members, until cancelled. Sleeps without a timer while there is none."""
        while True:
            if not any(host.needs_ticks for host in self._hosts.values()):
                self._wanted.clear()
                try:
                    await asyncio.wait_for(self._wanted.wait(), self.settings.forget_seconds)
                except TimeoutError:
                    self._forget()
            await asyncio.sleep(self.settings.tick_seconds)
            for host in self._hosts.values():
                if host.needs_ticks:
                    host.tick()

    async def keep_reading(self) -> None:
        """Read the records of every run that has members now and then, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.refresh_seconds)
            for host in list(self._hosts.values()):
                if host.needs_ticks:
                    try:
                        await host.refresh(self._clock.now())
                    except RecordsUnavailable as error:
                        log.warning("run %s: %s", host.name, error)
                    except RunGone:
                        continue
            self._forget()

    def _forget(self) -> None:
        limit = self._clock.now() - self.settings.forget_seconds
        unused = [uid for uid, host in self._hosts.items() if not host.needs_ticks and host.used_at < limit]
        for uid in unused:
            del self._hosts[uid]
