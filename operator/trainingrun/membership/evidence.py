"""What speaks against the current epoch: members lost, ranks that ended, restore points that failed.

Until somebody was told to stop, evidence may be withdrawn: a member that was only late is carried on with.
From then on (`committed`) it stays, because the epoch cannot go on and its successor's record must say why.
Pure; one object for each current epoch, filled by the state machine and read by `begin`, `proposal` and
`record`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trainingrun.membership.lineage import Lineage
from trainingrun.membership.restore import restore_name
from trainingrun.membership.roster import Roster, Seat
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import AgentPhase
from trainingrun.protocol.records import Epoch, Lost, Member, RankExit, Trigger

ENDED = frozenset({AgentPhase.FAILED, AgentPhase.IDLE})
_NOT_RESTORED = frozenset({ExitCode.CHECKPOINT_DAMAGED, ExitCode.NOT_FETCHED})


@dataclass(frozen=True)
class Sighting:
    at: float  # monotonic
    wall: float  # since 1970


@dataclass(frozen=True)
class Loss:
    lost: Lost
    seen: Sighting


class Evidence:
    def __init__(self, current: Epoch | None, known_damage: Collection[str] = ()) -> None:
        self._current = current
        self._known_damage = frozenset(known_damage)
        self._absent_since: dict[str, float] = {}
        self.losses: dict[str, Loss] = {}  # by session
        self.ended: dict[str, Sighting] = {}  # by session: its ranks of this epoch run no more
        self.exits: dict[tuple[int, int], RankExit] = {}
        self.damaged: set[str] = set()  # named by agents, and new; a transfer that failed names nothing
        self.restore_failed = False
        self.absent: tuple[Member, ...] = ()  # not seen since this service started or took over; not yet lost
        self._asked: set[str] = set()  # nonces of the proposals that stopped ranks of this epoch
        self.committed = False

    @property
    def broken(self) -> bool:
        """The current epoch cannot go on."""
        return bool(self.losses or self.ended)

    @property
    def may_repeat(self) -> bool:
        """Nothing that ended this epoch is out of the way in the next: no member, and no damaged restore point."""
        return self.trigger is Trigger.PROCESS_DIED or (
            self.trigger is Trigger.RESTORE_FAILED and not self.damaged
        )

    @property
    def trigger(self) -> Trigger:
        if self._current is None:
            return Trigger.STARTED
        if self.losses:
            return Trigger.MEMBER_LOST
        if self.ended:
            return Trigger.RESTORE_FAILED if self.restore_failed else Trigger.PROCESS_DIED
        return Trigger.JOINED

    @property
    def first_seen_wall(self) -> float | None:
        walls = [loss.seen.wall for loss in self.losses.values()] + [
            seen.wall for seen in self.ended.values()
        ]
        return min(walls) if walls else None

    @property
    def first_end_at(self) -> float | None:
        return min((seen.at for seen in self.ended.values()), default=None)

    @property
    def last_loss_at(self) -> float | None:
        return max((loss.seen.at for loss in self.losses.values()), default=None)

    def renew(self, now: float) -> None:
        """The service itself was away: who is absent gets its time again."""
        self._absent_since = dict.fromkeys(self._absent_since, now)

    def commit(self, nonce: str) -> None:
        """Members are told to pause or stop: this epoch will have a successor."""
        self._asked.add(nonce)
        self.committed = True

    def unresponsive(self, seat: Seat, now: float, wall: float) -> None:
        """A member of the current epoch did not acknowledge a proposal."""
        member = seat.as_member()
        if self._current is not None and any(m.session == member.session for m in self._current.members):
            self.losses[member.session] = _loss(member, "Unresponsive", Sighting(now, wall))

    def observe(
        self, roster: Roster, now: float, wall: float, *, grace_seconds: float, trust: bool, stopping: bool
    ) -> None:
        """Compare the current epoch with who is there.

        `trust` is False while the service suspects itself. `stopping`: its proposal told ranks to stop;
        those that end now are its own doing.
        """
        if self._current is None:
            return
        losses: dict[str, Loss] = {}
        ended: dict[str, Sighting] = {}
        absent: list[Member] = []
        for member in self._current.members:
            seat = roster.seat_of(member)
            if seat is not None:
                if seat.epoch == self._current.epoch and seat.phase in ENDED:
                    if not self._ended_by_us(seat, stopping):
                        ended[member.session] = self.ended.get(member.session, Sighting(now, wall))
                    if ended or self.broken:
                        self._read_exits(seat)
                continue
            departure = roster.departed.get(member.session)
            reason = _replaced(member, roster.at_slot(member.slot)) or (departure.reason if departure else "")
            if not reason and len(roster):
                since = self._absent_since.setdefault(member.session, now)
                reason = "Silent" if trust and now - since >= grace_seconds else ""
            if reason:
                seen = Sighting(now, departure.wall if departure else wall)
                losses[member.session] = self.losses.get(member.session, _loss(member, reason, seen))
            else:
                absent.append(member)
        self.losses = {**self.losses, **losses} if self.committed else losses
        self.ended = {**self.ended, **ended} if self.committed else ended
        self.absent = tuple(absent)

    def _ended_by_us(self, seat: Seat, stopping: bool) -> bool:
        acknowledged = seat.phase is AgentPhase.IDLE and seat.prepared in self._asked
        return acknowledged or (stopping and seat.session not in self.ended)

    def _read_exits(self, seat: Seat) -> None:
        report, current = seat.report, self._current
        if report is None or current is None:
            return
        for rank_exit in report.exits:
            self.exits[(rank_exit.slot, rank_exit.local_rank)] = rank_exit
        named = set(report.damaged) - self._known_damage
        self.damaged |= named
        failed = any(rank_exit.exit_code in _NOT_RESTORED for rank_exit in report.exits)
        if failed or restore_name(current) in named:
            self.restore_failed = True


def carries_on(seat: Seat, current: Epoch) -> bool:
    """Its ranks of the current epoch still run, or ended well."""
    return seat.epoch == current.epoch and seat.phase not in ENDED


def damage(lineage: Lineage, evidence: Evidence, roster: Roster) -> set[str]:
    """Every name that must not be restored from: of the records, and as reported now."""
    reported = (name for seat in roster.seats if seat.report for name in seat.report.damaged)
    return lineage.damaged | evidence.damaged | set(reported)


def _replaced(member: Member, seat: Seat | None) -> str:
    if seat is None:
        return ""
    return "Replaced" if seat.join.incarnation > member.incarnation else "Restarted"


def _loss(member: Member, reason: str, seen: Sighting) -> Loss:
    return Loss(Lost(member.slot, member.incarnation, member.node, reason), seen)
