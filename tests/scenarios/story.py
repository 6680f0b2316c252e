"""A run from apply to its end, and the checks that hold after every fault.

`told` runs one story on a line: faults are done by the story's own function while the run trains. Afterwards nothing
may be left, the run is complete, every step of the lineage read what the permutation says, and the losses are those of
the run that nobody disturbed: bit-equal where the sizes were the same, within a bound where they were not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scenarios.line import Line, Moment
from tests.scenarios.lineage import Losses, check_reads, read_losses
from tests.scenarios.lines import open_line
from tests.scenarios.manifests import small_manifest

from trainingrun.ports import EventRecord
from trainingrun.protocol.records import Epoch, RestoreSource, Trigger

STEPS = 150
FP32_BOUND = 1e-5  # only the order of summation differs
FP64_BOUND = 1e-9
_BROKEN = (Trigger.MEMBER_LOST, Trigger.PROCESS_DIED, Trigger.RESTORE_FAILED)


@dataclass(frozen=True)
class Told:
    """How a story ended."""

    end: Moment
    epochs: Sequence[Epoch]
    events: Sequence[EventRecord]
    losses: Losses
    folder: Path

    @property
    def sizes(self) -> list[int]:
        return [len(epoch.members) for epoch in self.epochs]

    @property
    def triggers(self) -> list[Trigger]:
        return [epoch.trigger for epoch in self.epochs]

    @property
    def sources(self) -> list[RestoreSource]:
        return [epoch.restore.source for epoch in self.epochs]


def told(
    folder: Path,
    story: Callable[[Line], None],
    *,
    steps: int = STEPS,
    nodes: int = 2,
    **changes: Any,
) -> Told:
    """Train `steps` steps while `story` happens; the checks that need no comparison are made here."""
    manifest = small_manifest(folder, training__duration={"steps": steps}, **changes)
    with open_line(nodes, folder / "line") as line:
        line.apply(manifest)
        story(line)
        end = line.wait_for_end()
        epochs = end.epochs
        revision = line.revisions()[-1]
        losses = read_losses(line.files("metrics-e*.jsonl"), epochs, steps)
        check_reads(line.files("reads-e*.jsonl"), epochs, revision.spec, line.cache_dir(), steps)
        check_status(end, epochs, steps, last_steps(line.files("metrics-e*.jsonl")))
        check_records(epochs)
        events = line.events()
        assert not line.objections()
    left = line.leaks()
    assert not left, f"left behind: {left}"
    return Told(end, epochs, events, losses, folder)


def last_steps(metrics: Sequence[Path]) -> dict[int, int]:
    rows = [json.loads(line) for path in metrics for line in path.read_text().splitlines()]
    last: dict[int, int] = {}
    for row in rows:
        if "loss" in row:
            last[row["epoch"]] = max(row["step"], last.get(row["epoch"], 0))
    return last


def check_records(epochs: Sequence[Epoch]) -> None:
    assert [epoch.epoch for epoch in epochs] == list(range(1, len(epochs) + 1)), (
        "a number is missing or doubled"
    )
    assert len({epoch.nonce for epoch in epochs}) == len(epochs)


def check_status(end: Moment, epochs: Sequence[Epoch], steps: int, trained: Mapping[int, int]) -> None:
    """The status tells the same story as the records and as the ranks' logs (`trained`: epoch -> its last step)."""
    status: Mapping[str, Any] = end.status
    assert status["progress"]["step"] == steps
    disruptions = status.get("disruptions") or {}
    assert disruptions.get("accountedEpoch", 0) == epochs[-1].epoch
    recorded, really = (
        sum(
            max(0, (reached(ended, later) or ended.restore.step) - later.restore.step)
            for ended, later in itertools.pairwise(epochs)
        )
        for reached in (lambda _, later: later.previous.last_step, lambda ended, _: trained.get(ended.epoch))
    )
    # News take a moment, so the very last steps of an epoch may be unknown; nothing else may be.
    assert recorded <= disruptions.get("lostSteps", 0) <= really
    counted = sum(item["count"] for item in disruptions.get("byCause") or [])
    assert counted == sum(bool(epoch.lost) or epoch.trigger in _BROKEN for epoch in epochs)
    goodput = status["goodput"]
    parts = goodput["productiveSeconds"] + sum(part["seconds"] for part in goodput["lost"])
    # Each part is rounded to a second for display.
    assert abs(parts - goodput["wallSeconds"]) <= max(
        0.005 * goodput["wallSeconds"], 0.5 * (len(goodput["lost"]) + 2)
    )
    pods = [pod for pod in end.pods if not pod.terminating and pod.run_uid]
    assert len({pod.slot for pod in pods}) == len(pods), f"two pods for one seat: {pods}"


def undisturbed(line: Line) -> None:
    """The story in which nothing happens."""
