"""The times and sizes that decisions depend on, in one frozen place. The unit is in each name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    crash_loop_seconds: float = 5.0  # longer in CrashLoopBackOff: the pod is replaced
    evidence_seconds: float = 10.0  # how long judging a loss waits for pods and nodes to confirm it
    # The same for a member that fell silent: Kubernetes notices a dead node 16 to 50 s later.
    silent_evidence_seconds: float = 60.0
    settle_seconds: float = 3.0  # younger than this, a loss is not judged by words that may be older ones
    news_seconds: float = 2.0  # a member that membership heard within this time is there
    first_backoff_seconds: float = 1.0  # before the second pod of a seat whose first never joined; doubles
    longest_backoff_seconds: float = 60.0  # so a seat makes at most one pod a minute when none of them works
    patience_seconds: float = 5.0  # what Kubernetes itself tries again calls for a person only after this
    slow_start_seconds: float = 20.0  # a pod that has a node and no container for so long is told of
    provision_seconds: float = 30.0  # a claim without a volume calls for a person only after this
    hopeless_pods: int = 3  # so many pods of a seat that ended before they could work call for a person
    claim_seconds: float = 5.0  # between two looks for a claim that is missing
    progress_seconds: float = 2.0  # between two looks at the progress of a run
    # Between two writes of it, when nothing else is new. Its time in status has whole seconds: up to one less.
    progress_write_seconds: float = 5.0
    checkpoint_age_factor: float = 3.0  # a durable checkpoint older than this many intervals is stale
    recent_disruptions: int = 20  # kept in status
    leaving_seconds: float = 15.0  # given to the last pods of a complete run, to end by themselves
    message_bytes: int = 2048  # of a failing rank's last output, kept in status
