"""Why an agent ends: exceptions that carry its exit code and its last words. Raised anywhere, caught in
`main`.
"""

from __future__ import annotations

from trainer.errors import ConfigError
from trainer.job import Mailbox
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Directive, Termination

LOOK_SECONDS = 1.0  # how long the main thread waits at most before it looks for what wakes nobody


class Ending(Exception):
    """The agent is over; `termination` is what it leaves behind."""

    def __init__(self, termination: Termination) -> None:
        super().__init__(termination.message or termination.reason)
        self.termination = termination


class BadConfiguration(Ending):
    """Can never work; the message names what is wrong and what would be right."""

    def __init__(self, message: str, reason: str = ConfigError.reason) -> None:
        super().__init__(Termination(ExitCode.BAD_CONFIGURATION, reason, message))


class MembershipLost(Ending):
    """Membership said that the run or this seat is gone."""

    def __init__(self, message: str) -> None:
        super().__init__(Termination(ExitCode.MEMBERSHIP_LOST, "MembershipLost", message))


class Left(Ending):
    """Left on request: a Leave directive or SIGTERM."""

    def __init__(self, message: str) -> None:
        super().__init__(Termination(ExitCode.LEFT, "Left", message))


class Broken(Ending):
    """Something failed that a restart of the container may cure."""

    def __init__(self, message: str) -> None:
        super().__init__(Termination(ExitCode.APPLICATION, "Application", message))


def leaving(directive: Directive, epoch: int, mailbox: Mailbox | None) -> Ending:
    """What a Leave directive means: the run is complete, or this member is not wanted any more.

    `epoch`: this agent's newest. The last words name the epoch that completed the run, whoever was a member of it.
    """
    if directive.reason != "Complete":
        return Left(f"membership asked this member to leave: {directive.reason}")
    result = mailbox.result() if mailbox else None
    step = result.step if result else 0
    return Ending(Termination(ExitCode.DONE, "Done", "the run is complete", directive.epoch or epoch, step))
