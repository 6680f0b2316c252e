"""Who is there: the agents of one run by slot, when each was last heard, and who vanished.

It decides who counts as lost, by the service's own receipts on a monotonic clock and never by an agent's
clock. It doubts itself first: when every member falls silent at once, the fault is more likely here than
everywhere else. It knows nothing of epochs. Called by the state machine only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainingrun.membership.errors import StaleIncarnation, UnknownSession
from trainingrun.membership.settings import Settings
from trainingrun.protocol.messages import AgentPhase, Directive, HeldSnapshot, JoinRequest, Report
from trainingrun.protocol.records import Member

READY = frozenset(
    {AgentPhase.IDLE, AgentPhase.RUNNING, AgentPhase.PAUSED, AgentPhase.FAILED, AgentPhase.DONE}
)
REMEMBERED_SESSIONS = 4096  # replaced agent processes whose late requests are still recognised


@dataclass
class Seat:
    """One live agent. `heard_at`, `closed_at` are seconds of the monotonic clock."""

    join: JoinRequest
    heard_at: float
    report: Report | None = None
    closed_at: float | None = None
    ready_wall: float = 0.0  # when it was first seen ready, seconds since 1970
    left_out: str = ""  # nonce of the proposal that it did not acknowledge in time
    directive: Directive = field(default_factory=lambda: Directive(seq=0))

    @property
    def slot(self) -> int:
        return self.join.slot

    @property
    def session(self) -> str:
        return self.join.session

    @property
    def phase(self) -> AgentPhase:
        if self.report is not None:
            return self.report.phase
        return AgentPhase.RUNNING if self.join.running_epoch else AgentPhase.PREPARING

    @property
    def epoch(self) -> int:
        """Of the ranks that run or ran last; 0 for none."""
        return self.report.epoch if self.report is not None else self.join.running_epoch

    @property
    def prepared(self) -> str:
        return self.report.prepared if self.report is not None else ""

    @property
    def ready(self) -> bool:
        return self.phase in READY and not self.left_out

    def as_member(self) -> Member:
        join = self.join
        return Member(join.slot, join.incarnation, join.session, join.node, join.address, join.peer_port)


@dataclass(frozen=True)
class Departure:
    """A session that is not there any more. `at` monotonic, `wall` since 1970: of the first sign."""

    session: str
    reason: str  # Silent | ConnectionClosed | Left
    at: float
    wall: float


@dataclass(frozen=True)
class Missed:
    """What a member held in memory that vanished without a goodbye: its container may come back, and still have it."""

    incarnation: int
    held: tuple[HeldSnapshot, ...]
    at: float


class Roster:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_slot: dict[int, Seat] = {}
        self._by_session: dict[str, Seat] = {}
        self._replaced: deque[str] = deque(maxlen=REMEMBERED_SESSIONS)
        self._highest: dict[int, int] = {}
        self._mass_silence = False
        self._missed: dict[int, Missed] = {}  # by slot
        self.departed: dict[str, Departure] = {}

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def seats(self) -> list[Seat]:
        return [self._by_slot[slot] for slot in sorted(self._by_slot)]

    @property
    def mass_silence(self) -> bool:
        """All members are silent at once, and it is not believed yet."""
        return self._mass_silence

    def at_slot(self, slot: int) -> Seat | None:
        return self._by_slot.get(slot)

    def seat_of(self, member: Member) -> Seat | None:
        """The live seat of that very agent process, or None."""
        return self.seat_with(member.session)

    def seat_with(self, session: str) -> Seat | None:
        return self._by_session.get(session)

    def know(self, members: Iterable[Member]) -> None:
        """Remember the incarnations that records name, so that an older one stays out after a restart."""
        for member in members:
            self._highest[member.slot] = max(self._highest.get(member.slot, -1), member.incarnation)

    def join(self, request: JoinRequest, now: float) -> Seat:
        """Seat an agent. Raises StaleIncarnation when a newer one has the seat."""
        highest = self._highest.get(request.slot, -1)
        if request.incarnation < highest:
            raise StaleIncarnation(
                f"slot {request.slot}: incarnation {request.incarnation} was replaced by {highest}"
            )
        if request.session in self._replaced:
            raise StaleIncarnation(
                f"slot {request.slot}: this agent process was replaced, or has left; it must end"
            )
        self._highest[request.slot] = request.incarnation
        before = self._by_slot.get(request.slot)
        if before is not None and before.session != request.session:
            self._remove(before)
            self._replaced.append(before.session)
            self._miss(before, now)
        missed = self._missed.get(request.slot)
        if missed is not None and missed.incarnation != request.incarnation:
            del self._missed[request.slot]  # another pod, with a memory of its own
        self.departed.pop(request.session, None)
        seat = Seat(join=request, heard_at=now)
        if before is not None and before.session == request.session:
            seat.directive, seat.left_out = before.directive, before.left_out
        self._by_slot[request.slot] = self._by_session[request.session] = seat
        self.heard(seat, now)
        return seat

    def get(self, session: str) -> Seat:
        """Raises UnknownSession, or StaleIncarnation for an agent process that was replaced."""
        seat = self._by_session.get(session)
        if seat is not None:
            return seat
        if session in self._replaced:
            raise StaleIncarnation("this agent process was replaced, or has left")
        raise UnknownSession("unknown session; join again")

    def heard(self, seat: Seat, now: float) -> None:
        if self._mass_silence:
            # The line is back and this is only the first of many: the others get their time again.
            self._mass_silence = False
            self.renew(now)
        seat.heard_at, seat.closed_at = now, None

    def connection_closed(self, session: str, now: float) -> None:
        seat = self._by_session.get(session)
        if seat is not None and seat.closed_at is None:
            seat.closed_at = now

    def leave(self, seat: Seat, now: float, wall: float) -> None:
        """It said goodbye, and its memory goes with it. Late requests of this agent process must not seat it again."""
        self._remove(seat)
        self._replaced.append(seat.session)
        self.departed[seat.session] = Departure(seat.session, "Left", now, wall)

    def renew(self, now: float) -> None:
        for seat in self._by_slot.values():
            seat.heard_at, seat.closed_at = now, None

    def expire(self, now: float, wall: float) -> list[tuple[Seat, Departure]]:
        """Take out and return the seats that count as lost now."""
        overdue = [(seat, reason) for seat in self.seats if (reason := self._overdue(seat, now))]
        if not overdue:
            self._mass_silence = False
            return []
        newest = max(seat.heard_at for seat in self._by_slot.values())
        everyone = len(self) > 1 and all(self._quiet(seat, now) for seat in self._by_slot.values())
        self._mass_silence = everyone and now - newest < self._settings.mass_silence_seconds
        if self._mass_silence:
            return []
        lost = []
        for seat, reason in overdue:
            first_sign = now if seat.closed_at is None else seat.closed_at
            departure = Departure(seat.session, reason, now, wall - (now - first_sign))
            self._remove(seat)
            self._miss(seat, now)
            self.departed[seat.session] = departure
            lost.append((seat, departure))
        return lost

    def returning(self, now: float) -> dict[int, tuple[HeldSnapshot, ...]]:
        """By slot: what those hold who vanished and may come back with it, or are back and not ready yet."""
        found = {}
        for slot, missed in self._missed.items():
            seat = self._by_slot.get(slot)
            settings = self._settings
            limit = settings.holder_return_seconds if seat is None else settings.holder_ready_seconds
            if (seat is None or not seat.ready) and now < missed.at + limit:
                report = seat.report if seat is not None else None
                found[slot] = report.snapshots if report is not None else missed.held
        return found

    def _miss(self, seat: Seat, now: float) -> None:
        if seat.report is not None and seat.report.snapshots:
            self._missed[seat.slot] = Missed(seat.join.incarnation, seat.report.snapshots, now)

    def forget_departed(self, keep: Iterable[str]) -> None:
        self._missed.clear()
        wanted = set(keep)
        self.departed = {session: gone for session, gone in self.departed.items() if session in wanted}

    def _overdue(self, seat: Seat, now: float) -> str:
        if seat.closed_at is not None and now - seat.closed_at >= self._settings.closed_grace_seconds:
            return "ConnectionClosed"
        preparing = seat.phase is AgentPhase.PREPARING
        limit = self._settings.preparing_silence_seconds if preparing else self._settings.silence_seconds
        return "Silent" if now - seat.heard_at >= limit else ""

    def _quiet(self, seat: Seat, now: float) -> bool:
        # Half the time makes part of a mass silence: reports of different members do not end together.
        return seat.closed_at is not None or now - seat.heard_at >= self._settings.silence_seconds / 2

    def _remove(self, seat: Seat) -> None:
        self._by_session.pop(seat.session, None)
        if self._by_slot.get(seat.slot) is seat:
            del self._by_slot[seat.slot]
