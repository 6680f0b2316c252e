"""The service over real HTTP on loopback, with records in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from tests.operator.membership_records import RUN, UID, MemoryRecords, a_revision

from trainingrun.membership.clock import SystemClock
from trainingrun.membership.server import serve
from trainingrun.membership.settings import Settings
from trainingrun.protocol import wire
from trainingrun.protocol.messages import (
    AgentPhase,
    Directive,
    DirectiveKind,
    JoinRequest,
    Poll,
    Report,
    RunView,
)
from trainingrun.protocol.records import Trigger

QUICK = Settings(start_wait_seconds=0.2, poll_seconds=1.0, refresh_seconds=0.3, body_limit_bytes=4096)


class JumpingClock(SystemClock):
    """The real clock, and what SIGSTOP of the whole process looks like to it."""

    def __init__(self) -> None:
        self.jumped = 0.0

    def now(self) -> float:
        return super().now() + self.jumped


class Line:
    """A client of the service, and the service's own inside."""

    def __init__(
        self, url: str, records: MemoryRecords, clock: JumpingClock, http: aiohttp.ClientSession
    ) -> None:
        self.url, self.records, self.clock, self.http = url, records, clock, http
        self.beats: list[asyncio.Task[None]] = []

    async def post(self, path: str, body: Any, uid: str = UID) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(wire.to_json(body)).encode()
        async with self.http.post(f"{self.url}/v1/runs/{uid}/{path}", data=data) as response:
            return response.status, await response.json()

    async def ask(self, path: str, body: Any) -> Directive:
        status, reply = await self.post(path, body)
        assert status == 200, reply
        return wire.from_json(Directive, reply)

    async def view(self) -> RunView:
        async with self.http.get(f"{self.url}/v1/runs/{UID}") as response:
            assert response.status == 200
            return wire.from_json(RunView, await response.json())

    async def member(self, slot: int) -> Report:
        """Joined, and a report that says it is ready."""
        status, reply = await self.post("join", a_join(slot))
        assert status == 200, reply
        report = Report(f"s{slot}", slot, AgentPhase.IDLE, location_fresh=True)
        await self.ask("report", report)
        return report

    def keep_reporting(self, report: Report) -> asyncio.Task[None]:
        async def beat() -> None:
            while True:
                await self.post("report", report)
                await asyncio.sleep(0.1)

        task = asyncio.create_task(beat())
        self.beats.append(task)
        return task

    async def until(self, happened: Callable[[], Awaitable[object]], limit: float = 8.0) -> float:
        began = time.monotonic()
        while not await happened():
            assert time.monotonic() - began < limit, await self.view()
            await asyncio.sleep(0.02)
        return time.monotonic() - began


def a_join(slot: int, **changes: Any) -> JoinRequest:
    request = JoinRequest((1, 1), slot, 0, f"p{slot}", f"s{slot}", f"n{slot}", "127.0.0.1", 1, 2, 2, "cpu")
    return replace(request, **changes)


@contextlib.asynccontextmanager
async def a_service(settings: Settings = QUICK, records: MemoryRecords | None = None) -> AsyncIterator[Line]:
    records, clock = records or MemoryRecords([a_revision((1, 2))]), JumpingClock()
    bound: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    service = asyncio.create_task(
        serve(
            records, "127.0.0.1", 0, settings, lambda h, p: bound.set_result((h, p)), stop=stop, clock=clock
        )
    )
    host, port = await bound
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as http:
        line = Line(f"http://{host}:{port}", records, clock, http)
        try:
            yield line
        finally:
            for beat in line.beats:
                beat.cancel()
            await asyncio.gather(*line.beats, return_exceptions=True)
            stop.set()
            await asyncio.wait_for(service, 5)


def story(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@story
async def test_a_held_poll_is_released_by_a_new_directive():
    async with a_service() as line:
        first = await line.member(0)
        poll = asyncio.create_task(line.ask("poll", Poll("s0", 0, 0)))
        await line.member(1)
        directive = await poll
        assert directive.kind is DirectiveKind.PREPARE
        held = asyncio.create_task(line.ask("poll", Poll("s0", 0, directive.seq)))
        await asyncio.sleep(0.1)
        assert not held.done()
        for slot in (0, 1):
            await line.ask("report", replace(first, session=f"s{slot}", slot=slot, prepared=directive.nonce))
        began = time.monotonic()
        start = await held
        assert time.monotonic() - began < 0.5
        assert start.kind is DirectiveKind.START and start.record is not None
        assert start.record == line.records.newest
        assert start.record.run == RUN and len(start.record.members) == 2


@story
async def test_a_poll_without_news_is_answered_after_its_time():
    async with a_service() as line:
        await line.member(0)
        line.keep_reporting(Report("s0", 0, AgentPhase.PREPARING))
        began = time.monotonic()
        directive = await line.ask("poll", Poll("s0", 0, 50))
        seen = directive.seq
        assert seen > 50, "a count of another instance is news at once"
        directive = await line.ask("poll", Poll("s0", 0, seen))
        assert 0.9 <= time.monotonic() - began < 3
        assert directive.seq == seen


@story
async def test_a_closed_poll_connection_is_noticed_at_once():
    async with a_service(replace(QUICK, silence_seconds=1.0)) as line:
        for slot in (0, 1):
            await line.member(slot)
        line.keep_reporting(Report("s0", 0, AgentPhase.PREPARING))
        line.keep_reporting(Report("s1", 1, AgentPhase.PREPARING))
        await asyncio.sleep(2.2)  # the service's own grace
        line.beats[1].cancel()
        directive = await line.ask("poll", Poll("s1", 1, 99))
        poll = asyncio.create_task(line.ask("poll", Poll("s1", 1, directive.seq)))
        await asyncio.sleep(0.1)
        poll.cancel()

        async def gone() -> bool:
            return [member.slot for member in (await line.view()).members] == [0]

        took = await line.until(gone)
        assert took < 0.9, "by the closed connection, not by silence"


@story
async def test_an_agent_that_dies_between_two_polls_is_noticed_by_its_connection():
    async with a_service(replace(QUICK, silence_seconds=1.5)) as line:
        for slot in (0, 1):
            await line.member(slot)
        line.keep_reporting(Report("s0", 0, AgentPhase.PREPARING))
        line.keep_reporting(Report("s1", 1, AgentPhase.PREPARING))
        await asyncio.sleep(3.2)  # the service's own grace
        async with aiohttp.ClientSession() as own:
            poll = json.dumps(wire.to_json(Poll("s1", 1, 99))).encode()
            async with own.post(f"{line.url}/v1/runs/{UID}/poll", data=poll) as response:
                assert response.status == 200  # answered: the connection is idle now
            line.beats[1].cancel()

        async def gone() -> bool:
            return [member.slot for member in (await line.view()).members] == [0]

        assert await line.until(gone) < 1.2, "by the closed connection, not by silence"


@story
async def test_refusals_have_their_status_and_code():
    async with a_service() as line:
        await line.member(0)
        seen = []
        for path, body, uid in (
            ("join", a_join(0), "no-such-run"),
            ("poll", Poll("nobody", 0, 0), UID),
            ("join", a_join(0, incarnation=2, session="new"), UID),
            ("join", a_join(0, incarnation=1, session="old"), UID),
            ("report", Report("s0", 0, AgentPhase.IDLE), UID),
            ("join", a_join(1, protocol=(5, 6)), UID),
        ):
            status, reply = await line.post(path, body, uid)
            seen.append((status, reply.get("error")))
        assert seen == [
            (404, "RunGone"),
            (410, "UnknownSession"),
            (200, None),
            (409, "StaleIncarnation"),
            (409, "StaleIncarnation"),
            (426, "ProtocolMismatch"),
        ]


@story
async def test_a_bad_message_is_refused_with_the_path_of_what_is_wrong():
    async with a_service() as line:
        good = wire.to_json(a_join(0))
        for body, problem in (
            (b"{", "$: not JSON"),
            (b"\xff\xfe{", "$: not JSON"),
            (json.dumps({**good, "slot": "zero"}).encode(), "$.slot: expected int, got 'zero'"),
            (json.dumps({**good, "protocol": [1]}).encode(), "$.protocol: expected 2 items, got 1"),
            (json.dumps({k: v for k, v in good.items() if k != "node"}).encode(), "$.node: missing"),
            (json.dumps({**good, "slot": -5}).encode(), "$.slot: no agent has such a value"),
            (json.dumps({**good, "session": ""}).encode(), "$.session: no agent has such a value"),
            (b"[" * 4000, "$: not JSON"),
            (b'"' + b"x" * 5000 + b'"', "$: Maximum request body size 4096 exceeded"),
        ):
            status, reply = await line.post("join", body)
            assert (status, reply["error"]) == (400, "BadMessage")
            assert problem in reply["message"]


@story
async def test_a_run_that_is_deleted_sends_its_agents_away():
    async with a_service(records=MemoryRecords([a_revision((2,))])) as line:
        await line.member(0)
        poll = asyncio.create_task(line.ask("poll", Poll("s0", 0, 0)))
        await asyncio.sleep(0.1)
        line.records.exists = False
        directive = await poll
        assert (directive.kind, directive.reason) == (DirectiveKind.LEAVE, "RunGone")
        status, reply = await line.post("report", Report("s0", 0, AgentPhase.IDLE))
        assert (status, reply["error"]) == (404, "RunGone")


@story
async def test_a_stopped_process_that_goes_on_declares_nobody_lost():
    async with a_service() as line:
        for slot in (0, 1):
            line.keep_reporting(await line.member(slot))
        await asyncio.sleep(0.2)
        line.clock.jumped += 30
        await asyncio.sleep(0.3)
        view = await line.view()
        assert view.suspicious_of_self
        assert len(view.members) == 2
        status, _ = await line.post("report", Report("s0", 0, AgentPhase.IDLE))
        assert status == 200, "its session is still known"


@story
async def test_another_instance_that_won_a_number_is_followed():
    records = MemoryRecords([a_revision((1,))])
    async with a_service(records=records) as one, a_service(records=records) as two:
        report = await one.member(0)
        line = one

        async def prepared() -> bool:
            nonlocal directive
            directive = await line.ask("report", report)
            return directive.kind is DirectiveKind.PREPARE

        directive = Directive(0)
        await one.until(prepared)
        line = two
        await two.member(0)
        mine, directive = directive, Directive(0)
        await two.until(prepared)
        start = await two.ask("report", replace(report, prepared=directive.nonce))
        await two.until(lambda: _has(records, 1))
        await one.ask("report", replace(report, prepared=mine.nonce))
        await asyncio.sleep(0.2)
        start = await one.ask("report", report)
        assert start.kind is DirectiveKind.START
        assert start.record == records.newest and start.record.nonce == directive.nonce
        assert start.record.trigger is Trigger.STARTED


async def _has(records: MemoryRecords, number: int) -> bool:
    return len(records.made) >= number


@story
async def test_records_that_are_away_are_an_answer_to_try_again():
    async with a_service() as line:
        line.records.unavailable = True
        status, reply = await line.post("join", a_join(0))
        assert (status, reply["error"]) == (503, "Unavailable")
        line.records.unavailable = False
        await line.member(0)


def test_a_record_that_is_refused_leaves_no_traceback_and_its_reason_is_shown(
    caplog: pytest.LogCaptureFixture,
):
    asyncio.run(_refused_once())
    assert not [record for record in caplog.records if record.exc_info]


async def _refused_once() -> None:
    records = MemoryRecords([a_revision((1,))], refusal="exceeded quota: objects")
    async with a_service(records=records) as line:
        report = await line.member(0)

        async def prepared() -> bool:
            nonlocal report
            report = replace(report, prepared=(await line.ask("report", report)).nonce)
            return bool(report.prepared)

        async def told() -> bool:
            text = (await line.view()).waiting_for
            return text == "the record of epoch 1 is refused: exceeded quota: objects"

        await line.until(prepared)
        line.keep_reporting(report)
        await line.until(told)
        records.refusal = ""
        await line.until(lambda: _has(records, 1))


@story
async def test_a_restarted_service_soon_trusts_itself_again_though_no_agent_is_left():
    async with a_service() as line:
        assert (await line.view()).suspicious_of_self
        line.clock.jumped += QUICK.grace_seconds + 0.1
        assert not (await line.view()).suspicious_of_self


@story
async def test_the_controller_may_ask_about_a_run_that_no_agent_has_joined():
    async with a_service() as line:
        view = await line.view()
        assert (view.run_uid, view.epoch, view.members) == (UID, 0, ())
        async with line.http.get(f"{line.url}/healthz") as response:
            assert response.status == 200


@story
async def test_stopping_answers_held_polls_and_is_quick():
    async with a_service(replace(QUICK, poll_seconds=30.0)) as line:
        await line.member(0)
        directive = await line.ask("poll", Poll("s0", 0, 99))
        poll = asyncio.create_task(line.ask("poll", Poll("s0", 0, directive.seq)))
        await asyncio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    poll.cancel()


def test_every_decision_is_one_log_line_with_its_reason(caplog):
    async def scene() -> None:
        async with a_service(records=MemoryRecords([a_revision((1,))])) as line:
            line.keep_reporting(await line.member(0))
            await asyncio.sleep(0.3)

    with caplog.at_level(logging.INFO, "trainingrun.membership"):
        asyncio.run(scene())
    lines = [record.getMessage() for record in caplog.records]
    assert "run story: slot 0 incarnation 0 on n0 joined" in lines
    assert "run story: proposes epoch 1 (Preparing): the run starts" in lines


def test_a_port_that_is_taken_is_an_error():
    async def scene() -> None:
        async with a_service() as line:
            port = int(line.url.rsplit(":", 1)[1])
            with pytest.raises(OSError):
                await serve(MemoryRecords(), "127.0.0.1", port)

    asyncio.run(scene())
