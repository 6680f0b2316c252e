"""Turns the ends of ranks into evidence: exit codes as the shell has them, and the last output of who failed.

It reports what it saw and judges nothing. Ranks that the agent itself killed are no evidence and are left
out.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainingrun.protocol.records import RankExit

MESSAGE_BYTES = 2048
SERVER_GONE = 255  # what multiprocessing says of a process whose fork server has died


def shell_code(code: int) -> int:
    """multiprocessing has -9 where the shell has 137."""
    return 128 - code if code < 0 else code


def evidence(
    slot: int,
    ended: Mapping[int, int],
    posted: Iterable[RankExit],
    logs: Mapping[int, Path],
    out_of_memory: bool,
    result_posted: bool,
) -> tuple[RankExit, ...]:
    """Reports of the local ranks that ended badly by themselves, in the order in which they were seen to end.

    `ended` maps local ranks to exit codes (negative: a signal); `posted` are the ranks' own messages.
    """
    messages = {error.local_rank: error for error in posted}
    found = []
    for local_rank, raw in ended.items():
        code = shell_code(raw)
        if code == 0 and result_posted:
            continue
        if local_rank in messages and code not in (137, SERVER_GONE):
            message = messages[local_rank].message
        else:
            message = "\n".join(filter(None, (describe(raw, out_of_memory), tail(logs[local_rank]))))
        # A rank that ends with 0 but leaves no result has not done its work.
        found.append(RankExit(slot, local_rank, code or 1, shorten(message)))
    return tuple(found)


def describe(raw: int, out_of_memory: bool) -> str:
    """One line for people: what became of a process with this exit code."""
    if raw == 0:
        return "ended without a result"
    if raw == SERVER_GONE:
        # The kernel prefers the largest process, and that may be the server with the code of all ranks.
        why = ": out of memory (the container's oom_kill counter went up)" if out_of_memory else ""
        return f"killed, because its fork server died{why}"
    if raw < 0:
        if out_of_memory and -raw == signal.SIGKILL:
            return "killed by the kernel: out of memory (the container's oom_kill counter went up)"
        try:
            return f"killed by {signal.Signals(-raw).name}"
        except ValueError:
            return f"killed by signal {-raw}"
    return f"exited with code {raw}"


def tail(path: Path, limit: int = MESSAGE_BYTES) -> str:
    """The last `limit` bytes of a log; "" when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - limit))
            return log.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


def shorten(text: str, limit: int = MESSAGE_BYTES) -> str:
    """At most `limit` bytes: the first line says what happened, so it stays, and the end says why."""
    data = text.strip().encode()
    if len(data) <= limit:
        return text.strip()
    head = data.split(b"\n", 1)[0][: limit // 4]
    rest = data[len(data) - (limit - len(head) - 8) :]
    return f"{head.decode(errors='ignore')}\n…\n{rest.decode(errors='ignore')}"


def one_line(message: str) -> str:
    """The line that says most: the last of a traceback, else the first."""
    lines = message.splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
