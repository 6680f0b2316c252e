"""Which epochs are smaller because fewer nodes are wanted, and not because something broke?

When a run is scaled down, the controller deletes the surplus pods, and membership sees members leave; its records
cannot tell that from a loss. What can: the seat is not wanted any more, and its pod was deleted on a node that
answers. Judged once, when the record is folded; after that, the counters know: what they did not count was no
disruption. Pure; used by `folding`, `ledger`, `state`, `reporting` and `telling`.
"""

from __future__ import annotations

from trainingrun.control.counters import read_counters
from trainingrun.control.failures import PREEMPTED, UNEXPLAINED, is_away
from trainingrun.control.lost_nodes import NODE_LOST
from trainingrun.control.observed import Observed
from trainingrun.control.remembered import Pods, member_pods
from trainingrun.control.seats import wanted_size
from trainingrun.protocol.records import Epoch, Lost


def resizes(observed: Observed) -> frozenset[int]:
    """Numbers of these epochs, among the records that are observed."""
    if observed.revision is None:
        return frozenset()
    counters = read_counters(observed.run.status)
    disruptions = {item.epoch for item in counters.recent}
    known = [record for record in (observed.before, observed.last) if record is not None]
    folded = {record.epoch for record in known if record.lost and record.epoch not in disruptions}
    size, pods = wanted_size(observed, observed.revision), member_pods(observed)
    return frozenset(
        folded | {record.epoch for record in observed.fresh if _is_wanted(record, size, pods, observed)}
    )


def _is_wanted(record: Epoch, size: int, pods: Pods, observed: Observed) -> bool:
    return bool(record.lost) and all(_was_surplus(lost, size, pods, observed) for lost in record.lost)


def _was_surplus(lost: Lost, size: int, pods: Pods, observed: Observed) -> bool:
    """One that fell silent may be on a lost node that nobody has noticed yet: then its pod stays there."""
    if lost.slot < size or is_away(lost.node, observed.nodes):
        return False
    pod = pods.get((lost.slot, lost.incarnation))
    if pod is None:
        return True
    deleted = pod.terminating and pod.reason not in PREEMPTED and pod.reason != NODE_LOST
    return deleted and lost.reason not in UNEXPLAINED
