"""Every time and limit of the membership service, in one frozen class. Units are in the names."""

from __future__ import annotations

from dataclasses import dataclass


class SettingsError(ValueError):
    """Settings that cannot work together; names the field, its value and the fix."""


@dataclass(frozen=True)
class Settings:
    """Times of the membership service. Told to agents in `JoinReply` where they must follow them."""

    report_seconds: float = 0.25
    """How often an agent reports (its heartbeat)."""
    poll_seconds: float = 5.0
    """How long a poll is held at most before it is answered with what the agent knows already."""
    silence_seconds: float = 2.0
    """A member that was not heard for this long is lost (Silent)."""
    preparing_silence_seconds: float = 10.0
    """The same for one that still prepares: importing the training code keeps it from talking."""
    closed_grace_seconds: float = 0.4
    """A member whose poll closed is lost (ConnectionClosed) unless it is heard again within this time."""
    stall_seconds: float = 1.0
    """When the service's own tick is late by more than this, it was stopped or starved itself."""
    mass_silence_seconds: float = 10.0
    """When all members (more than one) fall silent at once, the loss is believed only after this long."""
    settle_seconds: float = 0.15
    """Losses settle for this long since the last one, so that a burst is one change."""
    holder_return_seconds: float = 5.0
    """A lost member whose memory alone holds the newest state is given this long to come back: a container that is
    restarted in place still has it."""
    holder_ready_seconds: float = 30.0
    """So long after it was lost, such a member that is back must be ready."""
    ack_deadline_seconds: float = 10.0
    """A member that does not acknowledge a proposal within this time is left out (Unresponsive)."""
    pause_deadline_seconds: float = 30.0
    """How long ranks may take to pause at an agreed step before they are stopped as in a fault."""
    start_wait_seconds: float = 10.0
    """How long a first epoch that could start already waits for the largest useful size."""
    tick_seconds: float = 0.05
    """How often time is looked at while a run has members."""
    refresh_seconds: float = 2.0
    """How often the records are read again: a run may be gone, another instance may have made an epoch."""
    create_retry_seconds: float = 0.5
    """Pause before a record is created again after the records could not be reached."""
    refused_cap_seconds: float = 10.0
    """Longest pause before a record is created again that was refused; the pauses double."""
    backoff_cap_seconds: float = 30.0
    """Longest wait before an epoch whose predecessors died again and again without progress."""
    grow_hold_default_seconds: float = 60.0
    """Hold before growth for a revision whose spec names none."""
    body_limit_bytes: int = 1 << 20
    """Largest request body."""
    forget_seconds: float = 300.0
    """A run without members is dropped from memory after this long; its records bring it back."""

    def __post_init__(self) -> None:
        if self.closed_grace_seconds <= self.report_seconds:
            raise SettingsError(
                f"closed_grace_seconds is {self.closed_grace_seconds}: must be above report_seconds "
                f"({self.report_seconds}), or an agent that only opens its poll again counts as lost"
            )
        if self.silence_seconds < 4 * self.report_seconds:
            raise SettingsError(
                f"silence_seconds is {self.silence_seconds}: must be at least 4 x report_seconds "
                f"({self.report_seconds}), or one slow report counts as a lost node"
            )

    @property
    def grace_seconds(self) -> float:
        """Nobody is declared lost for this long after a start or a stall of the service itself."""
        return 2 * self.silence_seconds
