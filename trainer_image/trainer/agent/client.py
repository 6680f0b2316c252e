"""The agent's line to membership: one thread reports, one listens. Neither touches a rank.

Membership away changes nothing here: both threads try again, 0.1 to 1 s apart, and training goes on. Only an
answer by membership itself ends the agent: the run or the seat is gone, or no common protocol version.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable

from trainer.agent.endings import BadConfiguration, Broken, MembershipLost
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.wire_client import Connection, Refused, Unreachable
from trainingrun.protocol.messages import Directive, JoinReply, JoinRequest, Poll

logger = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 1.0)
_JOIN_TIMEOUT_SECONDS = 5.0
_REPORT_TIMEOUT_SECONDS = 3.0
_POLL_GRACE_SECONDS = 5.0  # beyond the time for which membership holds a poll


class Client:
    def __init__(
        self,
        open_connection: Callable[[], Connection],
        join_request: Callable[[], JoinRequest],
        news: News,
        inbox: Inbox,
    ) -> None:
        self._open = open_connection
        self._join_request = join_request
        self._news = news
        self._inbox = inbox
        self._terms: JoinReply | None = None  # None: not joined
        self._joined = threading.Condition()
        # Daemons: nothing waits for a held poll when the agent ends.
        self._threads = [
            threading.Thread(target=self._thread, args=(loop,), name=name, daemon=True)
            for name, loop in (("report", self._report_once), ("poll", self._poll_once))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _thread(self, once: Callable[[Connection], None]) -> None:
        try:
            self._run(once)
        except Exception:  # noqa: BLE001 - a thread that ends silently looks like a network fault
            self._inbox.end(Broken(f"a defect in the line to membership:\n{traceback.format_exc()}"))

    def _run(self, once: Callable[[Connection], None]) -> None:
        connection = self._open()
        pause, away_since = _BACKOFF_SECONDS[0], 0.0
        while True:
            generation, _ = self._inbox.position
            try:
                once(connection)
                if away_since:
                    logger.info("membership is back after %.1f s", time.monotonic() - away_since)
                pause, away_since = _BACKOFF_SECONDS[0], 0.0
            except Unreachable as error:
                if not away_since:
                    away_since = time.monotonic()
                    logger.warning("membership is away (%s); training goes on", error)
                time.sleep(pause)
                pause = min(pause * 2, _BACKOFF_SECONDS[1])
            except Refused as refusal:
                if not self._go_on_after(refusal, generation):
                    break
                time.sleep(pause)
                pause = min(pause * 2, _BACKOFF_SECONDS[1])
        connection.close()

    def _report_once(self, connection: Connection) -> None:
        terms = self._terms or self._join(connection)
        self._news.wait_for_news(terms.report_seconds)
        generation, _ = self._inbox.position
        version, report = self._news.compose()
        directive = connection.call("report", report, Directive, _REPORT_TIMEOUT_SECONDS)
        self._news.delivered(version)
        self._inbox.offer(directive, generation)

    def _poll_once(self, connection: Connection) -> None:
        with self._joined:
            self._joined.wait_for(lambda: self._terms is not None, 1.0)
            terms = self._terms
        if terms is None:
            return
        generation, seen = self._inbox.position
        request = self._join_request()
        poll = Poll(request.session, request.slot, seen)
        timeout = terms.poll_seconds + _POLL_GRACE_SECONDS
        self._inbox.offer(connection.call("poll", poll, Directive, timeout), generation)

    def _join(self, connection: Connection) -> JoinReply:
        request = self._join_request()
        terms = connection.call("join", request, JoinReply, _JOIN_TIMEOUT_SECONDS)
        logger.info("joined as slot %d, incarnation %d", request.slot, request.incarnation)
        self._inbox.joined()
        self._news.forget_deliveries()
        with self._joined:
            self._terms = terms
            self._joined.notify_all()
        return terms

    def _go_on_after(self, refusal: Refused, generation: int) -> bool:
        """Whether to try again. Raises nothing: an ending goes to the main thread through the inbox."""
        if refusal.code == "UnknownSession":
            with self._joined:
                if generation == self._inbox.position[0]:  # else the other thread has joined again meanwhile
                    logger.info("membership does not know this session; joining again")
                    self._terms = None
            return True
        if refusal.code in ("RunGone", "StaleIncarnation"):
            self._inbox.end(MembershipLost(f"{refusal.code}: {refusal}"))
            return False
        if refusal.code == "ProtocolMismatch":
            self._inbox.end(
                BadConfiguration(f"membership and this image have no common protocol version: {refusal}")
            )
            return False
        logger.error("membership refused a message (%s): %s", refusal.code, refusal)
        return True
