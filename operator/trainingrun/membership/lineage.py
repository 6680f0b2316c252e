"""What the epoch records of a run say together: the newest epoch, damage, known checkpoints, futile restarts.

Records are folded once each, in the order of their numbers. This is all that membership remembers over its
own restart. Pure; called by the state machine, which takes every record from it.
"""

from __future__ import annotations

from trainingrun.protocol.records import Epoch, RestoreSource, Trigger


class Lineage:
    def __init__(self) -> None:
        self.newest: Epoch | None = None
        self.sessions: frozenset[str] = frozenset()  # of the newest epoch's members
        self.damaged: set[str] = set()
        self.durable: dict[str, int] = {}  # every checkpoint ever known to be committed: name -> step
        # Epochs in a row that died by a process, or could not fetch, without a step beyond their restore point.
        self.futile_deaths = 0

    @property
    def epoch(self) -> int:
        return self.newest.epoch if self.newest else 0

    def add(self, record: Epoch) -> bool:
        """Fold a record that is newer than all before it; False when it is not."""
        before = self.newest
        if record.epoch <= self.epoch:
            return False
        found_damage = not self.damaged.issuperset(record.damaged)
        self.damaged.update(record.damaged)
        if record.previous.durable:
            self.durable[record.previous.durable] = record.previous.durable_step
        if record.restore.source is RestoreSource.DURABLE:
            self.durable[record.restore.manifest] = record.restore.step
        if before is not None:
            advanced = (
                record.previous.epoch == before.epoch and record.previous.last_step > before.restore.step
            )
            if advanced:
                self.futile_deaths = 0
            elif record.trigger is Trigger.PROCESS_DIED or (
                record.trigger is Trigger.RESTORE_FAILED and not found_damage
            ):
                self.futile_deaths += 1
        self.newest = record
        self.sessions = frozenset(member.session for member in record.members)
        return True


def backoff_seconds(futile_deaths: int, cap_seconds: float) -> float:
    """Wait before the next epoch after so many deaths in a row without progress: 0, 0, 1, 2, 4, … cap."""
    if futile_deaths <= 2:
        return 0.0
    return min(cap_seconds, 2.0 ** min(futile_deaths - 3, 30))
