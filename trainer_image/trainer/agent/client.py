"""The agent's line to membership: one thread reports, one listens. Neither touches a rank.

Membership away changes nothing here: both threads try again, 0.1 to 1 s apart, and training goes on. Only an
answer by membership itself ends the agent: the run or the seat is gone, or no common protocol version. That it
does not take this pod's token is a trouble that may pass: it ends an agent that has never been a member, and no other.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable

from trainer.agent.endings import BadConfiguration, Broken, MembershipLost
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.trouble import Trouble
from trainer.agent.wire_client import Connection, Refused, Unreachable
from trainingrun.protocol.messages import Directive, JoinReply, JoinRequest, Poll

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 1.0
_LONGEST_DENIED_PAUSE_SECONDS = 5.0  # each attempt costs the API server a look
_DENIED = frozenset({"Unauthenticated", "Forbidden"})
_DENIED_SECONDS = 60.0  # so long a token or an object may be behind; then it is no passing matter
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
        token_expired: Callable[[], bool] = lambda: False,
        denied_seconds: float = _DENIED_SECONDS,
    ) -> None:
        """`token_expired`: whether this pod waits for a new token, so that a refusal of the old one means nothing."""
        self._open = open_connection
        self._join_request = join_request
        self._news = news
        self._inbox = inbox
        self._token_expired = token_expired
        self._denied_seconds = denied_seconds
        self._was_member = False
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
        connection, trouble = self._open(), Trouble()
        while True:
            generation, _ = self._inbox.position
            try:
                once(connection)
                trouble.over()
            except Unreachable as error:
                trouble.met(type(error).__name__, f"membership is away ({error}); training goes on")
                trouble.wait(_LONGEST_PAUSE_SECONDS)
            except Refused as refusal:
                if not self._go_on_after(refusal, generation, trouble):
                    break
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
        self._was_member = True
        self._inbox.joined()
        self._news.forget_deliveries()
        with self._joined:
            self._terms = terms
            self._joined.notify_all()
        return terms

    def _go_on_after(self, refusal: Refused, generation: int, trouble: Trouble) -> bool:
        """Whether to try again. Raises nothing: an ending goes to the main thread through the inbox."""
        longest = _LONGEST_PAUSE_SECONDS
        if refusal.code == "UnknownSession":
            with self._joined:
                if generation == self._inbox.position[0]:  # else the other thread has joined again meanwhile
                    logger.info("membership does not know this session; joining again")
                    self._terms = None
        elif refusal.code in ("RunGone", "StaleIncarnation"):
            self._inbox.end(MembershipLost(f"{refusal.code}: {refusal}"))
            return False
        elif refusal.code == "ProtocolMismatch":
            self._inbox.end(
                BadConfiguration(f"membership and this image have no common protocol version: {refusal}")
            )
            return False
        elif refusal.code in _DENIED:
            if not self._bear_denial(refusal, trouble):
                return False
            longest = _LONGEST_DENIED_PAUSE_SECONDS
        else:
            trouble.met(
                refusal.code, f"membership refused a message ({refusal.code}): {refusal}", logging.ERROR
            )
        trouble.wait(longest)
        return True

    def _bear_denial(self, refusal: Refused, trouble: Trouble) -> bool:
        """False when it has ended this agent: it was never a member, so no training is lost with it."""
        seconds = trouble.met(
            refusal.code,
            f"membership does not take this pod's token ({refusal.code}): {refusal}",
            logging.ERROR,
        )
        if self._was_member or seconds < self._denied_seconds or self._token_expired():
            return True
        self._inbox.end(
            BadConfiguration(
                f"membership has not taken this pod's token for {seconds:.0f} s ({refusal.code}): {refusal}. "
                "Fix: let the operator make the pod, with its labels, its owner and its token volume unchanged"
            )
        )
        return False
