"""A bill of memory and a step as bars: for `explain` and `what-if`. Text only; weighs nothing.

A bar reads without colour: each part has a letter of its own. On a terminal parts have colours besides, unless
NO_COLOR is set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from trainingrun.cli.output import bar, styled
from trainingrun.planner.text import human_bytes, human_seconds
from trainingrun.planner.weighing import Weighed, parts_of
from trainingrun.protocol.records import Rung

WIDTH = 60


@dataclass(frozen=True)
class Part:
    name: str
    letter: str
    colour: str
    note: str


PARTS = (
    Part("weights", "W", "34", "this rank's shard"),
    Part("gradients", "G", "35", "of its shard"),
    Part("optimizer", "O", "36", "what the update keeps"),
    Part("activations", "A", "33", "kept for the backward pass"),
    Part("logits", "L", "31", "copies in the loss"),
    Part("buffers", "B", "32", "gathered blocks and messages"),
    Part("reserved", "R", "90", "interpreter and libraries"),
    Part("snapshots", "S", "37", "two, and a copy to save from, in the pod's memory"),
    Part("buddies", "N", "90", "two snapshots of the next node, in the pod's memory"),
)
KEPT_FREE, UNUSED = "-", "."
STEP_NOTES = {
    "communication": "exposed",
    "starting": "operations and batches that the host starts too late to hide it",
}


def memory_lines(weighed: Weighed) -> list[str]:
    """One line a part: bytes, share of the limit as a bar, what it is."""
    limit = weighed.available
    rows = [
        (part, getattr(weighed.memory, part.name)) for part in PARTS if getattr(weighed.memory, part.name)
    ]
    lines = [f"Memory of the fullest process: {verdict(weighed)}", f"  {stacked(weighed)}"]
    for part, count in rows:
        share = count / limit
        figures = f"{human_bytes(count):>9} {count:>15,} B {100 * share:5.1f} %"
        shown = styled(f"{bar(share):<40}", part.colour, sys.stdout)
        lines.append(f"  {part.letter} {part.name:<11} {figures}  {shown}  {_note(part, weighed)}".rstrip())
    for letter, name, count, note in (
        (KEPT_FREE, "kept free", weighed.margin, "models err by a few percent"),
        (UNUSED, "unused", max(0, weighed.free), ""),
    ):
        share = count / limit
        figures = f"{human_bytes(count):>9} {count:>15,} B {100 * share:5.1f} %"
        lines.append(f"  {letter} {name:<11} {figures}  {bar(share):<40}  {note}".rstrip())
    lines.append(f"  probability of running out of memory: {percent(weighed.p_oom)}")
    if weighed.host_needed and weighed.host_available:
        lines.append(
            f"  beside the accelerators, snapshots of a node{_and_of_a_buddy(weighed)}: "
            f"{human_bytes(weighed.host_needed)} of {human_bytes(weighed.host_available)} of host memory"
        )
    return lines


def _note(part: Part, weighed: Weighed) -> str:
    """The whole gradients of a sharded stage that pile up between micro-batches are the most of its buffers."""
    rung = weighed.rung
    if part.name != "buffers" or rung.engine != "Native" or rung.shard == 1 or rung.accumulation == 1:
        return part.note
    piled = min(weighed.memory.buffers, weighed.memory.gradients * (rung.shard - 1))
    return f"{human_bytes(piled)} whole gradients until the last micro-batch; {part.note}"


def _and_of_a_buddy(weighed: Weighed) -> str:
    return " and of its buddy" if weighed.rung.buddies else ""


def verdict(weighed: Weighed) -> str:
    """The sum that decides, and how it ends."""
    there = f"{human_bytes(weighed.memory.total)} of {human_bytes(weighed.available)}"
    if weighed.fits:
        return there
    if weighed.free < 0:
        return (
            f"{there}, too much by {human_bytes(-weighed.free)} with {human_bytes(weighed.margin)} kept free"
        )
    return f"{there}, but its snapshots do not fit beside it"


def stacked(weighed: Weighed, width: int = WIDTH) -> str:
    """The whole memory as one bar of letters; what is beyond it stands behind the end."""
    bill, limit = weighed.memory, weighed.available
    counts = [(part.letter, part.colour, getattr(bill, part.name)) for part in PARTS]
    counts.append((KEPT_FREE, "90", weighed.margin))
    cells: list[tuple[str, str]] = []
    total = 0
    for letter, colour, count in counts:
        total += count
        end = min(round(width * total / limit), 2 * width + 1)  # what is beyond is not shown
        cells += [(letter, colour)] * (end - len(cells))
    inside, beyond = cells[:width], cells[width : 2 * width]
    inside += [(UNUSED, "90")] * (width - len(inside))
    return f"|{_coloured(inside)}|{_coloured(beyond)}{'…' if len(cells) > 2 * width else ''}"


def _coloured(cells: Sequence[tuple[str, str]]) -> str:
    """Runs of one colour are styled together."""
    text, begin = "", 0
    for index in range(1, len(cells) + 1):
        if index == len(cells) or cells[index] != cells[begin]:
            run = "".join(letter for letter, _ in cells[begin:index])
            text, begin = text + styled(run, cells[begin][1], sys.stdout), index
    return text


def step_lines(weighed: Weighed) -> list[str]:
    """Where a step goes. Communication is what is exposed: the rest hides behind computing."""
    total = weighed.times.total
    scale = weighed.step_seconds / total
    lines = []
    for name, seconds in parts_of(weighed.times).items():
        share = seconds / total
        note = f"  {STEP_NOTES[name]}" if seconds and name in STEP_NOTES else ""
        figures = f"{human_seconds(seconds * scale):>8} {100 * share:5.1f} %"
        lines.append(f"  {name:<13} {figures}  {bar(share)}{note}".rstrip())
    return lines


def copies_of(rung: Rung) -> str:
    """How many nodes hold the least-held piece of the state."""
    return f"{rung.state_copies} (buddies)" if rung.buddies else str(rung.state_copies)


def percent(share: float) -> str:
    if share < 0.001:
        return "less than 0.1 %"
    return "more than 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"
