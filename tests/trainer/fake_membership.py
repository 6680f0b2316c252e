"""A membership service for agent tests: speaks the protocol over HTTP, decides nothing by itself.

The test says which directive goes to which slot, and waits for reports. `form` plays the life of an epoch:
Prepare, all acknowledge, Start. `away` closes the port and all connections, and comes back at the same port.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainingrun.protocol import wire
from trainingrun.protocol.messages import (
    AgentPhase,
    Directive,
    DirectiveKind,
    JoinReply,
    JoinRequest,
    Poll,
    Report,
)
from trainingrun.protocol.records import Epoch, Member, Restore, RestoreSource, Rung, Store, Trigger

RUN, UID = "fake", "uid-1"


@dataclass
class Seat:
    join: JoinRequest
    joins: int = 1
    directive: Directive = field(default_factory=lambda: Directive(seq=0))
    report: Report | None = None
    reported_at: float = 0.0
    phase_since: dict[str, float] = field(
        default_factory=dict
    )  # phase -> seconds since 1970, of the newest change


class FakeMembership:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seats: dict[int, Seat] = {}
        self.history: list[Report] = []
        self.refuse: tuple[int, str] | None = None  # (status, code) for every request
        self.epoch = 0
        self.times: dict[str, float] = {}
        self._server: _Server | None = None
        self._port = 0
        self._serve()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # for tests

    def wait_for(self, what: Callable[[], Any], seconds: float = 30.0, say: str = "") -> Any:
        with self.changed:
            if not self.changed.wait_for(what, seconds):
                states = {slot: seat.report for slot, seat in self.seats.items()}
                raise TimeoutError(f"not within {seconds} s: {say}; reports: {states}")
            return what()

    def heard(self, activity: str) -> bool:
        return any(report.activity == activity for report in self.history)

    def phase(self, slot: int) -> AgentPhase | None:
        seat = self.seats.get(slot)
        return seat.report.phase if seat and seat.report else None

    def wait_phase(self, slot: int, phase: AgentPhase, seconds: float = 30.0) -> Report:
        self.wait_for(lambda: self.phase(slot) is phase, seconds, f"slot {slot} {phase.value}")
        return self.seats[slot].report  # type: ignore[return-value]

    def wait_step(self, slot: int, step: int, epoch: int, seconds: float = 30.0) -> Report:
        def reached() -> bool:
            report = self.seats[slot].report
            progress = report.progress if report else None
            return progress is not None and progress.summary.epoch == epoch and progress.step >= step

        self.wait_for(reached, seconds, f"step {step} of epoch {epoch}")
        return self.seats[slot].report  # type: ignore[return-value]

    def direct(self, slot: int, kind: DirectiveKind, **fields: Any) -> None:
        with self.changed:
            seat = self.seats[slot]
            seat.directive = Directive(seat.directive.seq + 1, kind, **fields)
            self.changed.notify_all()

    def prepare(self, slots: Sequence[int], seconds: float = 30.0) -> str:
        nonce = f"nonce-{self.epoch + 1}-{time.monotonic()}"
        self.times["prepare"] = time.time()
        for slot in slots:
            self.direct(slot, DirectiveKind.PREPARE, nonce=nonce, epoch=self.epoch + 1)
        self.wait_for(
            lambda: all((r := self.seats[slot].report) is not None and r.prepared == nonce for slot in slots),
            seconds,
            f"slots {slots} prepared",
        )
        self.times["prepared"] = time.time()
        return nonce

    def start(self, record: Epoch) -> None:
        self.epoch = record.epoch
        self.times["record"] = time.time()
        for member in record.members:
            self.direct(member.slot, DirectiveKind.START, epoch=record.epoch, record=record)

    def form(self, slots: Sequence[int], restore: Restore | None = None, **rung: Any) -> Epoch:
        record = self.record(slots, self.prepare(slots), restore or Restore(RestoreSource.INITIAL), **rung)
        self.start(record)
        return record

    def record(self, slots: Sequence[int], nonce: str, restore: Restore, **rung: Any) -> Epoch:
        number = self.epoch + 1
        joins = [self.seats[slot].join for slot in slots]
        first = joins[0]
        shape: dict[str, Any] = {"replicate": len(slots), "shard": 1, "tensor": first.processes}
        shape |= {"micro_batch": 1, "accumulation": 1, **rung}
        return Epoch(
            name=f"{RUN}-e{number}",
            run=RUN,
            run_uid=UID,
            epoch=number,
            revision=f"{RUN}-r1",
            nonce=nonce,
            created_at=time.time(),
            members=tuple(
                Member(j.slot, j.incarnation, j.session, j.node, j.address, j.peer_port) for j in joins
            ),
            rung=Rung(
                nodes=len(slots),
                processes_per_node=first.processes,
                pipeline=1,
                padding_sequences=0,
                state_copies=1,
                **shape,
            ),
            store=Store(first.address, first.store_port, f"e{number}"),
            restore=restore,
            trigger=Trigger.STARTED,
            detected_at=time.time(),
        )

    @contextlib.contextmanager
    def away(self, forget: bool = False) -> Iterator[None]:
        self.close()
        try:
            yield
        finally:
            if forget:
                self.seats.clear()
            self._serve()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            with self.changed:
                self.changed.notify_all()

    # for agents

    def answer(self, what: str, data: Any) -> tuple[int, Any]:
        with self.changed:
            if self.refuse is not None:
                return self.refuse[0], {"error": self.refuse[1], "message": "as the test wants it"}
            if what == "join":
                return self._join(wire.from_json(JoinRequest, data))
            if what == "report":
                return self._report(wire.from_json(Report, data))
            return self._poll(wire.from_json(Poll, data))

    def _join(self, join: JoinRequest) -> tuple[int, Any]:
        before = self.seats.get(join.slot)
        self.seats[join.slot] = Seat(join, joins=before.joins + 1 if before else 1)
        self.changed.notify_all()
        return 200, JoinReply(1, report_seconds=0.25, poll_seconds=2.0, silence_seconds=2.0)

    def _report(self, report: Report) -> tuple[int, Any]:
        seat = self.seats.get(report.slot)
        if seat is None or seat.join.session != report.session:
            return 410, {"error": "UnknownSession", "message": ""}
        now = time.time()
        if seat.report is None or seat.report.phase != report.phase:
            seat.phase_since[report.phase.value] = now
        seat.report, seat.reported_at = report, now
        self.history.append(replace(report))
        self.changed.notify_all()
        return 200, seat.directive

    def _poll(self, poll: Poll) -> tuple[int, Any]:
        server = self._server
        deadline = time.monotonic() + 2.0
        while True:
            seat = self.seats.get(poll.slot)
            if seat is None or seat.join.session != poll.session:
                return 410, {"error": "UnknownSession", "message": ""}
            left = deadline - time.monotonic()
            if seat.directive.seq > poll.seen or left <= 0 or self._server is not server:
                return 200, seat.directive
            self.changed.wait(left)

    def _serve(self) -> None:
        membership = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = membership.answer(self.path.rsplit("/", 1)[1], data)
                body = json.dumps(wire.to_json(answer)).encode()
                head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                with contextlib.suppress(OSError):
                    self.wfile.write(head + body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*args)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections that the test or an agent has cut

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
