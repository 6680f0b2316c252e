"""The service over real HTTPS on loopback, with the gate of a cluster before it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from tests.operator.gate_world import CONTROLLER, UID, FakeServer, a_pod
from tests.operator.membership_records import MemoryRecords, a_revision
from tests.operator.test_membership_server import QUICK, a_join, story

from trainingrun.cluster.kubernetes import certificates
from trainingrun.cluster.kubernetes.gate import TokenGate
from trainingrun.membership.access import Access, check_join, check_run, check_seat
from trainingrun.membership.errors import Forbidden, GateUnavailable, Unauthenticated
from trainingrun.membership.server import serve
from trainingrun.ports import Caller, Denied, Unavailable
from trainingrun.protocol import wire
from trainingrun.protocol.messages import AgentPhase, JoinRequest, Poll, Report, RunView
from trainingrun.protocol.names import TOKEN_AUDIENCE, pod_name

AUTHORITY = certificates.new_authority("test", datetime.now(UTC))


class Service:
    def __init__(self, url: str, server: FakeServer, http: aiohttp.ClientSession) -> None:
        self.url, self.server, self.http = url, server, http

    async def post(self, path: str, body: Any, token: str | None, uid: str = UID) -> tuple[int, Any]:
        url = f"{self.url}/v1/runs/{uid}/{path}"
        async with self.http.post(url, json=wire.to_json(body), headers=bearer(token)) as response:
            return response.status, await response.json()

    async def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=bearer(token)) as response:
            return response.status, await response.json()

    async def member(self, slot: int = 0, incarnation: int = 0) -> str:
        """The token of a pod whose agent has joined."""
        token = self.server.add_worker(slot, incarnation)
        status, answer = await self.post("join", joining(slot, incarnation), token)
        assert status == 200, answer
        return token


def joining(slot: int = 0, incarnation: int = 0, **changes: Any) -> JoinRequest:
    pod = pod_name("demo", slot, incarnation)
    own = {"incarnation": incarnation, "pod": pod, "session": f"s{slot}-{incarnation}"}
    return replace(a_join(slot), **(own | changes))


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextlib.asynccontextmanager
async def a_service(**options: Any) -> AsyncIterator[Service]:
    server = FakeServer()
    gate = TokenGate(server, TOKEN_AUDIENCE, CONTROLLER, **options)
    hosts = certificates.service_names("membership", "operator")
    tls = certificates.server_context(certificates.server_certificate(AUTHORITY, hosts, datetime.now(UTC)))
    bound: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    service = asyncio.create_task(
        serve(
            MemoryRecords([a_revision((1, 2))]),
            "127.0.0.1",
            0,
            QUICK,
            lambda host, port: bound.set_result((host, port)),
            stop=stop,
            tls=tls,
            gate=gate,
        )
    )
    _, port = await bound
    trust = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(20)) as http:
        try:
            yield Service(f"https://localhost:{port}", server, http)
        finally:
            began = time.monotonic()
            stop.set()
            await asyncio.wait_for(service, 5)
            assert time.monotonic() - began < 3


def refused(answer: tuple[int, Any], status: int, code: str) -> str:
    assert answer[0] == status, answer
    assert answer[1]["error"] == code
    return str(answer[1]["message"])


@story
async def test_a_stranger_learns_nothing_but_that_the_service_is_alive():
    async with a_service() as service:
        for path in ("/healthz", "/readyz"):
            assert (await service.get(path))[0] == 200
        for path in (f"/v1/runs/{UID}", "/v1/runs/no-such-run", "/nowhere"):
            refused(await service.get(path), 401, "Unauthenticated")
        for path in ("join", "report", "poll"):
            refused(await service.post(path, {"not": "a message"}, None), 401, "Unauthenticated")
        said = refused(await service.get(f"/v1/runs/{UID}", "made-up"), 401, "Unauthenticated")
        assert "no token of a service account" in said
        assert service.server.reviews == 0


@story
async def test_a_server_of_another_authority_is_refused_by_a_client():
    async with a_service() as service:
        other = certificates.new_authority("test", datetime.now(UTC))
        trust = ssl.create_default_context(cadata=other.certificate_pem)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await service.http.get(f"{service.url}/healthz", ssl=trust)


@story
async def test_a_member_of_a_run_is_heard_and_sees_its_run():
    async with a_service() as service:
        token = await service.member()
        report = Report("s0-0", 0, AgentPhase.IDLE, location_fresh=True)
        assert (await service.post("report", report, token))[0] == 200
        assert (await service.post("poll", Poll("s0-0", 0, -1), token))[0] == 200
        status, answer = await service.get(f"/v1/runs/{UID}", token)
        assert status == 200
        assert [member.slot for member in wire.from_json(RunView, answer).members] == [0]


@story
async def test_the_controller_may_look_at_every_run_and_is_no_member():
    async with a_service() as service:
        token = service.server.controller_token()
        assert (await service.get(f"/v1/runs/{UID}", token))[0] == 200
        refused(await service.get("/v1/runs/gone", token), 404, "RunGone")
        refused(await service.post("join", joining(), token), 403, "Forbidden")
        report = Report("s0-0", 0, AgentPhase.IDLE)
        refused(await service.post("report", report, token), 403, "Forbidden")


@story
async def test_an_agent_of_another_run_is_refused_before_it_learns_whether_the_run_exists():
    async with a_service() as service:
        token = await service.member()
        for path in (f"/v1/runs/{UID}-2", "/v1/runs/gone"):
            refused(await service.get(path, token), 403, "Forbidden")
        said = refused(await service.post("join", joining(), token, uid="other"), 403, "Forbidden")
        assert said == "pod team/demo-0-0 (slot 0, incarnation 0) belongs to another run than other"


@pytest.mark.parametrize("request_", [joining(1), joining(0, 1), joining(0, 0, pod="demo-1-0")])
def test_an_agent_cannot_join_in_another_seat_than_its_pod_s(request_):
    async def run() -> None:
        async with a_service() as service:
            token = service.server.add_worker()
            refused(await service.post("join", request_, token), 403, "Forbidden")
            assert (await service.post("join", joining(), token))[0] == 200

    asyncio.run(run())


@story
async def test_an_agent_speaks_for_its_own_seat_only():
    async with a_service() as service:
        first, second = await service.member(0), await service.member(1)
        stolen = Report("s1-0", 1, AgentPhase.FAILED)
        said = refused(await service.post("report", stolen, first), 403, "Forbidden")
        assert said == "pod team/demo-0-0 (slot 0, incarnation 0) cannot speak for slot 1, incarnation 0"
        # the same with a slot that looks like its own
        disguised = replace(stolen, slot=0)
        refused(await service.post("report", disguised, first), 403, "Forbidden")
        refused(await service.post("poll", Poll("s1-0", 0, 0), first), 403, "Forbidden")
        assert (await service.post("report", replace(stolen, phase=AgentPhase.IDLE), second))[0] == 200


@story
async def test_an_earlier_incarnation_is_told_that_its_seat_is_gone():
    async with a_service() as service:
        old = await service.member(0, 0)
        await service.member(0, 1)
        report = Report("s0-0", 0, AgentPhase.IDLE)
        refused(await service.post("report", report, old), 409, "StaleIncarnation")
        refused(await service.post("join", joining(0, 0), old), 409, "StaleIncarnation")
        refused(await service.post("report", replace(report, session="s0-1"), old), 403, "Forbidden")


@story
async def test_an_agent_that_is_not_known_any_more_joins_again():
    async with a_service() as service:
        token = service.server.add_worker()
        refused(
            await service.post("report", Report("s0-0", 0, AgentPhase.IDLE), token), 410, "UnknownSession"
        )


@story
async def test_those_who_are_known_are_heard_while_the_api_server_is_away():
    async with a_service() as service:
        token, stranger = await service.member(), service.server.add_worker(1)
        service.server.away = True
        assert (await service.post("report", Report("s0-0", 0, AgentPhase.IDLE), token))[0] == 200
        assert (await service.post("join", joining(), token))[0] == 200
        said = refused(await service.post("join", joining(1), stranger), 503, "Unavailable")
        assert "cannot be found out now" in said


@story
async def test_a_token_counts_until_it_expires():
    ahead = [0.0]
    async with a_service(wall=lambda: time.time() + ahead[0]) as service:
        token = await service.member()
        ahead[0] = 3590
        assert (await service.get(f"/v1/runs/{UID}", token))[0] == 200
        ahead[0] = 3601
        assert "expired" in refused(await service.get(f"/v1/runs/{UID}", token), 401, "Unauthenticated")
        renewed = service.server.token_of(a_pod(), seconds=7200)
        assert (await service.get(f"/v1/runs/{UID}", renewed))[0] == 200


@story
async def test_a_pod_that_is_gone_cannot_join_again():
    async with a_service() as service:
        token = await service.member()
        service.server.remove_pod("demo-0-0")
        said = refused(await service.post("join", joining(), token), 401, "Unauthenticated")
        assert "does not exist any more" in said


@story
async def test_many_agents_that_come_back_at_once_are_few_questions_at_a_time():
    async with a_service() as service:
        service.server.slow_seconds = 0.01
        tokens = [service.server.add_worker(slot) for slot in range(60)]
        calls = [service.get(f"/v1/runs/{UID}", token) for token in tokens for _ in range(3)]
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        assert service.server.reviews == 60
        assert service.server.most_at_once <= 8


@story
async def test_a_member_whose_connection_closes_is_lost_over_tls_too():
    async with a_service() as service:
        token = await service.member()
        trust = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
        host, port = service.url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        body = '{"session": "s0-0", "slot": 0, "seen": 99999999999}'
        writer.write(
            f"POST /v1/runs/{UID}/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await asyncio.sleep(0.3)
        assert wire.from_json(RunView, (await service.get(f"/v1/runs/{UID}", token))[1]).members
        writer.transport.abort()  # as when the agent is killed: nobody says good-bye in TLS
        began = time.monotonic()
        while wire.from_json(RunView, (await service.get(f"/v1/runs/{UID}", token))[1]).members:
            assert time.monotonic() - began < 6
            await asyncio.sleep(0.02)


@story
async def test_a_flood_of_refusals_is_a_line_a_second_in_the_log():
    async with a_service() as service:
        log = logging.getLogger("trainingrun.membership")
        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        try:
            await asyncio.gather(*(service.get(f"/v1/runs/{number}") for number in range(50)))
        finally:
            log.removeHandler(handler)
        assert len([line for line in lines if "Unauthenticated" in line]) <= 2


# the rules, without a server

AGENT = Caller(UID, 2, 1, "demo-2-1", "team")


@pytest.mark.parametrize(
    ("caller", "slot", "seated", "allowed"),
    [
        (AGENT, 2, (2, 1), True),
        (AGENT, 2, None, True),
        (AGENT, 1, None, False),
        (AGENT, 1, (2, 1), False),
        (AGENT, 2, (1, 1), False),
        (AGENT, 2, (2, 0), False),
        (Caller(), 2, (2, 1), False),
    ],
)
def test_a_message_is_allowed_from_its_own_seat_only(caller, slot, seated, allowed):
    with contextlib.nullcontext() if allowed else pytest.raises(Forbidden):
        check_seat(caller, slot, seated)


def test_a_join_is_allowed_from_its_own_pod_only():
    check_join(AGENT, joining(2, 1))
    with pytest.raises(Forbidden, match="the controller is no member"):
        check_join(Caller(), joining(2, 1))
    check_run(Caller(), "any")


class Slow:
    """A gate that takes its time; `answer` may be an error."""

    def __init__(self, answer: Caller | Exception) -> None:
        self.answer, self.asked = answer, 0

    def known(self, token: str) -> Caller | None:
        return None

    def admit(self, token: str) -> Caller:
        self.asked += 1
        time.sleep(0.2)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@story
async def test_a_caller_that_hangs_up_does_not_spoil_the_answer_for_those_who_wait_too():
    gate = Slow(AGENT)
    access = Access(gate)
    first = asyncio.create_task(access.caller("Bearer abc"))
    second = asyncio.create_task(access.caller("bearer  abc"))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await second == AGENT
    assert gate.asked == 1
    access.close()


@story
async def test_what_the_gate_says_becomes_what_the_caller_hears():
    for answer, expected in ((Denied("no"), Unauthenticated), (Unavailable("away"), GateUnavailable)):
        access = Access(Slow(answer))
        with pytest.raises(expected):
            await access.caller("Bearer abc")
        access.close()
        with pytest.raises(GateUnavailable, match="is stopping"):
            await access.caller("Bearer abc")
    for header in ("", "Bearer", "Basic abc", "abc"):
        with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
            await Access(Slow(AGENT)).caller(header)
