"""Words of the API that people, tools and parts of ours agree on: labels, conditions, reasons, managers.

Imports nothing of ours. A word here is public: renaming one breaks somebody's dashboard, alert or script.
"""

from __future__ import annotations

from enum import StrEnum

GROUP = "trainingrun.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingRun"
PLURAL = "trainingruns"
SINGULAR = "trainingrun"
SHORT_NAME = "trun"
CATEGORY = "training"

OLDEST_KUBERNETES = "1.31"
"""Oldest Kubernetes that the CRD and the pods are made for: their schemas, and the CEL functions of the rules."""
NEWEST_KUBERNETES = "1.35"
"""Newest Kubernetes that the cluster tests run on."""

NAME_LIMIT = 40
"""Longest name of a run: pods are `<name>-<slot>-<incarnation>`, and a host name ends at 63 characters."""


class Label(StrEnum):
    """Labels of everything that a run owns."""

    RUN_NAME = f"{GROUP}/run-name"
    RUN_UID = f"{GROUP}/run-uid"
    SLOT = f"{GROUP}/slot"
    INCARNATION = f"{GROUP}/incarnation"
    REVISION = f"{GROUP}/revision"
    RECORD = f"{GROUP}/record"  # on ControllerRevisions: Revision | Epoch
    EPOCH = f"{GROUP}/epoch"  # on epoch records


class FieldManager(StrEnum):
    """Owners of fields under server-side apply. Status has one writer."""

    CONTROLLER = "trainingrun-controller"
    MEMBERSHIP = "trainingrun-membership"
    CLI = "trainingrun-cli"


class ConditionType(StrEnum):
    READY = "Ready"  # kstatus: True while it trains at a useful size, and when it is complete
    RECONCILING = "Reconciling"  # kstatus: starting, recovering or growing
    STALLED = "Stalled"  # kstatus: needs a person
    PLANNED = "Planned"  # a plan fits
    CHECKPOINT_FRESH = "CheckpointFresh"  # the newest durable checkpoint is not older than agreed
    COMPLETE = "Complete"  # terminal: finished well
    FAILED = "Failed"  # terminal: gave up


class Reason(StrEnum):
    """Reasons of conditions. The reason of Ready is the state that people see."""

    PENDING = "Pending"  # nobody has looked at it yet
    PLANNING = "Planning"
    PLANNED = "Planned"
    STARTING = "Starting"  # seats are created, no step yet
    WAITING_FOR_NODES = "WaitingForNodes"  # fewer than minNodes are there
    TRAINING = "Training"
    RECOVERING = "Recovering"
    GROWING = "Growing"
    SHRINKING = "Shrinking"  # fewer nodes are wanted
    STEADY = "Steady"  # of Reconciling=False
    COMPLETED = "Completed"
    # what only a person can change
    INVALID_SPEC = "InvalidSpec"
    PLAN_INFEASIBLE = "PlanInfeasible"
    BAD_CONFIGURATION = "BadConfiguration"
    RESTART_BUDGET_SPENT = "RestartBudgetSpent"
    NO_PROGRESS = "NoProgress"
    NO_USABLE_CHECKPOINT = "NoUsableCheckpoint"
    LOCATION_IN_USE = "LocationInUse"  # the checkpoint location belongs to another run
    REVISION_MISSING = "RevisionMissing"  # the frozen record of a run that has begun is gone
    REVISION_CONFLICT = "RevisionConflict"  # a record or pod of ours carries another run's identity
    CLAIM_MISSING = "ClaimMissing"  # a volume claim that the spec names is not there
    CLAIM_NOT_SHARED = "ClaimNotShared"  # it can be used by one node at a time only
    CLAIM_READ_ONLY = "ClaimReadOnly"  # the run has to write to it
    CLAIM_PENDING = "ClaimPending"  # nothing gives it a volume
    POD_REFUSED = "PodRefused"  # Pod Security, LimitRange, a missing service account, …
    RECORD_REFUSED = "RecordRefused"
    IMAGE_ERROR = "ImageError"
    POD_CANNOT_START = "PodCannotStart"  # or ends again and again before it can work
    # waiting for somebody else
    MEMBERSHIP_UNREACHABLE = "MembershipUnreachable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    # of CheckpointFresh
    CHECKPOINT_SAVED = "CheckpointSaved"
    CHECKPOINT_STALE = "CheckpointStale"
    SAVE_FAILED = "SaveFailed"
    NO_CHECKPOINT_YET = "NoCheckpointYet"
    # of Complete=False, Failed=False, Stalled=False
    NOT_FINISHED = "NotFinished"
    NOT_FAILED = "NotFailed"
    NOT_STALLED = "NotStalled"


class Cause(StrEnum):
    """Why training stopped. Each cause has a budget of its own."""

    APPLICATION = "Application"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"  # processes are there but do not step
    INFRASTRUCTURE = "Infrastructure"
    PREEMPTION = "Preemption"


class EpochCause(StrEnum):
    """Why an epoch began: nothing was wrong, or a Cause."""

    STARTED = "Started"
    GROWING = "Growing"
    SHRINKING = "Shrinking"
    RESTORE_FAILED = "RestoreFailed"
    APPLICATION = Cause.APPLICATION.value
    OUT_OF_MEMORY = Cause.OUT_OF_MEMORY.value
    HANG = Cause.HANG.value
    INFRASTRUCTURE = Cause.INFRASTRUCTURE.value
    PREEMPTION = Cause.PREEMPTION.value


class LostPart(StrEnum):
    """What the unproductive seconds of a run went into (status.goodput.lost)."""

    START = "Start"  # until the first step ever
    QUEUE = "Queue"  # waiting for nodes
    DETECT = "Detect"  # fault happened, not yet seen
    RESTORE = "Restore"  # fault seen, first new step not yet done
    REDONE = "Redone"  # steps trained a second time
    CHECKPOINT = "Checkpoint"  # steps stood still for a checkpoint or a snapshot
    RESIZE = "Resize"  # a voluntary change of size
    CONTROL = "Control"  # membership or controller away while a change waited


class EventReason(StrEnum):
    """Reasons of events: one line each, for people."""

    PLANNED = "Planned"
    PLAN_INFEASIBLE = "PlanInfeasible"
    INVALID_SPEC = "InvalidSpec"
    REVISION_CREATED = "RevisionCreated"
    POD_CREATED = "PodCreated"
    POD_REPLACED = "PodReplaced"
    POD_DELETED = "PodDeleted"
    EPOCH_STARTED = "EpochStarted"
    NODE_LOST = "NodeLost"
    POD_LOST = "PodLost"  # deleted, evicted, ended or silent; its node answers
    PROCESS_DIED = "ProcessDied"
    RECOVERED = "Recovered"
    GROWN = "Grown"
    SHRUNK = "Shrunk"
    CHECKPOINT_SAVED = "CheckpointSaved"
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    RESTORE_FAILED = "RestoreFailed"  # and nothing is damaged
    CHECKPOINT_STALE = "CheckpointStale"
    NO_USABLE_CHECKPOINT = "NoUsableCheckpoint"
    MEMBERSHIP_UNREACHABLE = "MembershipUnreachable"
    WAITING_FOR_NODES = "WaitingForNodes"
    REVISION_MISSING = "RevisionMissing"
    CLAIM_UNUSABLE = "ClaimUnusable"
    REFUSED = "Refused"  # a pod or a record
    IMAGE_ERROR = "ImageError"
    POD_CANNOT_START = "PodCannotStart"
    COMPLETED = "Completed"
    FAILED = "Failed"
