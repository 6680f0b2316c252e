"""How a container ended, as protocol.messages.Termination: the agent's last words, or what the kubelet knows. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainingrun.protocol import wire
from trainingrun.protocol.exit_codes import NEVER_RESTARTED
from trainingrun.protocol.messages import Termination

OOM_KILLED = "OOMKilled"
_PLAIN = frozenset({"Error", "Completed"})  # any other reason comes with the kubelet's own words
_KILLED = 129  # from here on, exit codes stand for signals


def last_words(ended: Mapping[str, Any]) -> Termination:
    """From a container's `terminated` state. The kernel's exit code counts, with one exception.

    An agent that must not be started again exits with 0, because the kubelet restarts all else (see
    names.ENV_RESTART_POLICY): then the code in its message counts.
    """
    code = int(ended.get("exitCode") or 0)
    reason, text = str(ended.get("reason", "")), str(ended.get("message", ""))
    said = _parse(text)
    if said is None:
        # Who is killed says nothing of it: the end of its log is about other things.
        words = text if code < _KILLED or reason not in _PLAIN | {OOM_KILLED} else ""
        said = Termination(exit_code=code, reason=_word(code, reason), message=words or reason)
    if reason == OOM_KILLED and code != 0:
        # With code 0 only a process of the container was killed, perhaps long ago, and the agent got over it.
        message = f"{OOM_KILLED}: the container used more memory than its limit. {said.message}"
        return replace(said, exit_code=code, reason=OOM_KILLED, message=message)
    if code == 0 and said.exit_code in NEVER_RESTARTED:
        return said
    return replace(said, exit_code=code)


def _parse(text: str) -> Termination | None:
    """None for a text that is no message of an agent: the end of a log, or what the runtime said."""
    try:
        return wire.from_json(Termination, json.loads(text))
    except (ValueError, RecursionError):
        return None


def _word(code: int, reason: str) -> str:
    if reason and reason not in _PLAIN:
        return reason  # StartError, ContainerStatusUnknown, …: the kubelet knows more than the code
    return "Killed" if code >= _KILLED else "Error"
