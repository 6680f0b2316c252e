"""What follows from a pod or record that the API server would not have: when to try again, and what to say of it.

Each seat backs off by itself, so that one refused pod keeps no other seat waiting. A quota is tried again at
once when a pod of the run has made room. Pure; used by `seats`, `decide` and `obstacles`.
"""

from __future__ import annotations

from trainingrun.api.constants import Reason
from trainingrun.control.observed import Observed, Refusal
from trainingrun.control.policy import Policy

_QUOTA = "exceeded quota"
_NAMESPACE_GOES = "being terminated"


def is_quota(refusal: Refusal) -> bool:
    """Waits for somebody else's pods, or for more quota."""
    return _QUOTA in refusal.message


def reason_of(refusal: Refusal, other: Reason) -> Reason:
    return Reason.QUOTA_EXCEEDED if is_quota(refusal) else other


def needs_person(refusal: Refusal, now: float, policy: Policy) -> bool:
    """Policies, limits and accounts do not change by themselves. But an account may come a moment after the run."""
    if is_quota(refusal) or _NAMESPACE_GOES in refusal.message:
        return False
    return now - refusal.since >= policy.patience_seconds


def not_before(refusal: Refusal | None, observed: Observed, policy: Policy) -> float:
    """When to try again, in seconds since 1970; 0 for at once."""
    if refusal is None or refusal.generation != observed.run.generation:
        return 0.0
    if is_quota(refusal) and refusal.beside - observed.counting:
        return 0.0
    exponent = min(refusal.count - 1, 30)
    return refusal.at + min(policy.first_backoff_seconds * 2.0**exponent, policy.longest_backoff_seconds)
