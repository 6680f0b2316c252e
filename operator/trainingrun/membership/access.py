"""Who may say what to the membership service: an agent speaks for its own seat only, the controller only looks.

The rules are pure functions of a proven Caller and a message. Finding out who calls is the gate's business; `Access`
asks it in a few threads of its own and once for each token, so that a thousand agents that come back at the same
moment are no thousand questions to the API server at once. Called by `server`; not used where there is no gate.
"""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor

from trainingrun.membership.errors import Forbidden, GateUnavailable, Unauthenticated
from trainingrun.ports import Caller, Denied, Gate, Unavailable
from trainingrun.protocol.messages import JoinRequest

THREADS = 8
_SCHEME = "bearer"


class Access:
    def __init__(self, gate: Gate, threads: int = THREADS) -> None:
        self._gate = gate
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gate")
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}  # by hash of the token
        self._closed = False

    async def caller(self, authorization: str, anew: bool = False) -> Caller:
        """Who sent this Authorization header. `anew`: what is remembered counts only if nobody can be asked.

        Raises Unauthenticated and GateUnavailable.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != _SCHEME or not token:
            raise Unauthenticated("this needs a header `Authorization: Bearer <token>`")
        known = None if anew else self._gate.known(token)
        return known or await self._ask(token)

    def close(self) -> None:
        """Waits for nobody: a question that hangs must not hold up the end."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, token: str) -> Caller:
        if self._closed:
            raise GateUnavailable("this service is stopping")
        key = hashlib.sha256(token.encode()).digest()
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._admit(token))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)  # a caller that hangs up must not spoil it for those who wait too

    async def _admit(self, token: str) -> Caller:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._gate.admit, token)
        except Denied as denied:
            raise Unauthenticated(str(denied)) from denied
        except Unavailable as error:
            raise GateUnavailable(f"who calls cannot be found out now: {error}") from error

    def _answered(self, key: bytes, task: asyncio.Task[Caller]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # those who waited may all have hung up; then nobody has looked at it


def check_run(caller: Caller, run_uid: str) -> None:
    """An agent knows of its own run only. The controller may ask about every run. Raises Forbidden."""
    if not caller.is_controller and caller.run_uid != run_uid:
        raise Forbidden(f"{_who(caller)} belongs to another run than {run_uid}")


def check_join(caller: Caller, request: JoinRequest) -> None:
    """Raises Forbidden."""
    _check_agent(caller)
    if (request.slot, request.incarnation) != (caller.slot, caller.incarnation):
        raise Forbidden(
            f"{_who(caller)} cannot join as slot {request.slot}, incarnation {request.incarnation}"
        )
    if request.pod != caller.pod:
        raise Forbidden(f"{_who(caller)} cannot join as pod {request.pod!r}")


def check_seat(caller: Caller, slot: int, seated: tuple[int, int] | None) -> None:
    """`slot` is what the message says, `seated` the (slot, incarnation) of its session; None: no member has it.

    Raises Forbidden. What becomes of an unknown session is the state machine's to say.
    """
    _check_agent(caller)
    own = (caller.slot, caller.incarnation)
    if slot != caller.slot or (seated is not None and seated != own):
        raise Forbidden(f"{_who(caller)} cannot speak for {_seat(seated or (slot, caller.incarnation))}")


def _check_agent(caller: Caller) -> None:
    if caller.is_controller:
        raise Forbidden("the controller is no member; it may only look")


def _who(caller: Caller) -> str:
    return f"pod {caller.namespace}/{caller.pod} ({_seat((caller.slot, caller.incarnation))})"


def _seat(seat: tuple[int, int]) -> str:
    return f"slot {seat[0]}, incarnation {seat[1]}"
