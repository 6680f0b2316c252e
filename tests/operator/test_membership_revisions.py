"""A further revision while a run trains: nothing is stopped for it, and the next epoch begins with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.operator.membership_records import MemoryRecords, a_revision
from tests.operator.test_membership_server import Line, a_service, story

from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind, Report
from trainingrun.protocol.records import Epoch, RankExit


async def begun(line: Line, report: Report) -> Epoch:
    """The record that this only member starts with, after it has prepared for it."""
    found: Directive = Directive(0)

    async def told(kind: DirectiveKind, say: Report) -> bool:
        nonlocal found
        found = await line.ask("report", say)
        return found.kind is kind

    await line.until(lambda: told(DirectiveKind.PREPARE, report))
    prepared = replace(report, prepared=found.nonce)
    await line.until(lambda: told(DirectiveKind.START, prepared))
    assert found.record is not None
    return found.record


@story
async def test_a_further_revision_stops_nothing_and_the_next_epoch_begins_with_it() -> None:
    first = a_revision((1,))
    records = MemoryRecords([first])
    async with a_service(records=records) as line:
        one = await begun(line, await line.member(0))
        assert (one.revision, one.rung.micro_batch) == (first.name, 2)
        smaller = tuple(replace(rung, micro_batch=1, accumulation=2) for rung in first.rungs)
        second = replace(first, name=first.name.replace("-r1", "-r2"), revision=2, rungs=smaller)
        records.revision_list.append(second)
        line.keep_reporting(Report("s0", 0, AgentPhase.RUNNING, epoch=1))
        await asyncio.sleep(1.0)  # three readings
        assert records.newest == one
        line.beats[0].cancel()
        killed = (RankExit(0, 0, 137, "out of memory"),)
        died = Report("s0", 0, AgentPhase.FAILED, epoch=1, exits=killed, location_fresh=True)
        two = await begun(line, died)
        assert (two.epoch, two.revision, two.rung.micro_batch) == (2, second.name, 1)
        assert two.rung.layout == one.rung.layout
