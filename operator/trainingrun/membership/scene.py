"""What is known of a run at one moment: the input of every decision about its next epoch. Read by `begin`,
`proposal`, `record`, `directives` and `view`; filled by `state` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainingrun.membership.evidence import Evidence, carries_on, damage
from trainingrun.membership.lineage import Lineage
from trainingrun.membership.restore import Blocked, choose_restore
from trainingrun.membership.roster import Roster, Seat
from trainingrun.membership.selection import choose_rung
from trainingrun.protocol.messages import AgentPhase, DurableCheckpoint, HeldSnapshot, Progress
from trainingrun.protocol.records import Epoch, Member, Restore, RestoreSource, Revision, Rung


@dataclass
class Scene:
    run: str
    run_uid: str
    lineage: Lineage
    roster: Roster
    evidence: Evidence
    revision: Revision | None = None
    progress: Progress | None = None  # newest, of any epoch
    first_step_at: float | None = None  # monotonic: when the current epoch was first seen to have stepped
    suspicious: bool = False  # of itself
    complete: bool = False

    @property
    def current(self) -> Epoch | None:
        return self.lineage.newest

    @property
    def ready(self) -> list[Seat]:
        return [seat for seat in self.roster.seats if seat.ready]

    @property
    def rung(self) -> Rung | None:
        """The largest useful rung that the ready members fill."""
        return choose_rung(self.revision.rungs, len(self.ready)) if self.revision else None

    @property
    def current_progress(self) -> Progress | None:
        """Of the current epoch."""
        ours = self.progress and self.current and self.progress.summary.epoch == self.current.epoch
        return self.progress if ours else None

    @property
    def advanced(self) -> bool:
        """The current epoch got beyond its restore point."""
        progress, current = self.current_progress, self.current
        return (
            progress is not None and current is not None and progress.summary.last_step > current.restore.step
        )

    def in_epoch(self, seat: Seat) -> bool:
        return seat.session in self.lineage.sessions

    def present(self) -> list[tuple[Member, Seat]]:
        """Members of the current epoch that are there, with their seats."""
        members = self.current.members if self.current else ()
        return [(member, seat) for member in members if (seat := self.roster.seat_of(member)) is not None]

    def carrying_on(self) -> bool:
        """Every member of the current epoch is there and its ranks run, pause or are done."""
        current = self.current
        return (
            current is not None
            and len(self.present()) == len(current.members)
            and all(carries_on(seat, current) for _, seat in self.present())
        )

    def pausing_is_over(self) -> bool:
        return self.carrying_on() and all(
            seat.phase in (AgentPhase.PAUSED, AgentPhase.DONE) for _, seat in self.present()
        )

    def restore(
        self, members: Iterable[Seat], also: Mapping[int, Sequence[HeldSnapshot]] | None = None
    ) -> Restore | Blocked:
        """Where an epoch of these members would start from, by their newest reports. `also`: what others hold."""
        reports = {seat.slot: seat.report for seat in members if seat.report is not None}
        held = {**(also or {}), **{slot: report.snapshots for slot, report in reports.items()}}
        durable = self._durable()
        ever_known = {*self.lineage.durable, *(checkpoint.name for checkpoint in durable)}
        damaged = damage(self.lineage, self.evidence, self.roster)
        fresh = all(report.location_fresh for report in reports.values())
        return choose_restore(held, durable, damaged, ever_known, fresh=fresh, location=self._location())

    def worth_waiting_for(
        self, members: Sequence[Seat], restore: Restore | Blocked, now: float
    ) -> Sequence[int]:
        """Slots of lost members that may come back with a newer state in memory than these members have anywhere.
        Only what is in nobody's memory is worth it: a step or two less is not.
        """
        if isinstance(restore, Restore) and restore.source is RestoreSource.MEMORY:
            return ()
        returning = self.roster.returning(now)
        better = self.restore(members, returning) if returning else restore
        if isinstance(better, Blocked) or better.source is not RestoreSource.MEMORY:
            return ()
        if isinstance(restore, Restore) and (restore.epoch, restore.step) >= (better.epoch, better.step):
            return ()
        return [slot for slot in better.holders if slot in returning]

    def remember_durable(self, checkpoints: Iterable[DurableCheckpoint]) -> None:
        for checkpoint in checkpoints:
            self.lineage.durable[checkpoint.name] = checkpoint.step

    def _location(self) -> str:
        """The checkpoint location, for people."""
        checkpoint = self.revision.spec.get("checkpoint") if self.revision is not None else None
        return str(checkpoint["location"]["uri"]) if checkpoint else "the checkpoint location"

    def _durable(self) -> set[DurableCheckpoint]:
        return {c for seat in self.roster.seats if seat.report is not None for c in seat.report.durable}
