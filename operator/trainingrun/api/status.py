"""status of a TrainingRun: what is, as the controller last saw it. Counters and names, never a log; bounded.

Written by the controller alone, read by everybody. Shares are in thousandths and losses are text, because
floats differ between the languages that read them. Unknown fields are ignored: a newer controller may
have written them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from trainingrun.api.conditions import MESSAGE_LIMIT, initial_conditions
from trainingrun.api.constants import Cause, EpochCause, LostPart

RECENT_DISRUPTIONS = 20
FAILURE_MESSAGE_LIMIT = 2048
MEASURED_SIZES = 16

Name = Annotated[str, StringConstraints(max_length=253)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
Timestamp = Annotated[
    str, StringConstraints(max_length=20, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
]
Decimal = Annotated[
    str, StringConstraints(max_length=32, pattern=r"^(-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|nan|inf)$")
]
Count = Annotated[int, Field(ge=0, le=2**53)]
Permille = Annotated[int, Field(ge=0, le=1000)]
Size = Annotated[int, Field(ge=1, le=1048576)]

_LIST_MAP = "x-kubernetes-list-type"
_LIST_KEYS = "x-kubernetes-list-map-keys"


class StatusBlock(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class Condition(StatusBlock):
    """One observation, in the form that Kubernetes tools know."""

    type: str = Field(min_length=1, max_length=63, description="What it says, such as Ready or Complete.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(min_length=1, max_length=63, description="Why, in one word for programs.")
    message: str = Field("", max_length=MESSAGE_LIMIT, description="Why, for people.")
    observed_generation: Count = Field(0, description="Generation of the spec that it was judged by.")
    last_transition_time: Timestamp = Field(description="When status changed last.")


class Resolved(StatusBlock):
    """What the run was frozen as."""

    revision: Name = Field(description="Name of the record of the resolved spec and plan.")
    planner: Name = Field(description="Version of the planner that made the plan.")
    data_fingerprint: Name | None = Field(None, description="Hash of the tokenised data, once it is known.")


class PlanAxes(StatusBlock):
    """Sizes of the mesh axes. data = replicate x shard; data x context x tensor x pipeline = processes."""

    data: Size = Field(description="Data parallelism: processes that read different samples.")
    replicate: Size = Field(1, description="Whole copies of the training state.")
    shard: Size = Field(1, description="Processes that share one copy of the state.")
    tensor: Size = Field(description="Processes that split each layer.")
    context: Size = Field(1, description="Processes that share the tokens of each sequence.")
    pipeline: Size = Field(description="Groups of layers that processes work on in turn.")


class Plan(StatusBlock):
    """How the run trains at its present size."""

    nodes: Size = Field(description="Nodes that train.")
    axes: PlanAxes = Field(description="Sizes of the mesh axes.")
    micro_batch: Size = Field(description="Sequences that a process computes at a time.")
    accumulation: Size = Field(description="Micro-batches of one step.")
    padding_permille: Permille = Field(
        0,
        description="Share of the computed sequences that weigh nothing and keep the global batch.",
    )
    state_copies: Size = Field(
        description="Copies of the training state, each on nodes of its own, those that buddies keep included."
    )
    memory_mib: Count = Field(alias="memoryMiB", description="Predicted peak memory of one process, in MiB.")
    available_mib: Count = Field(alias="availableMiB", description="Memory that one process has, in MiB.")
    step_millis: Count | None = Field(None, description="Measured time of a step, in milliseconds.")
    predicted_step_millis: Count = Field(description="Predicted time of a step, in milliseconds.")
    reason: Sentence = Field("", description="Why this plan.")


class NodeCounts(StatusBlock):
    """How many nodes are in which state."""

    training: Count = Field(0, description="Members of the running epoch.")
    joining: Count = Field(0, description="Started or starting, not yet members.")
    pending: Count = Field(0, description="Waiting for a machine.")
    terminating: Count = Field(0, description="Asked to end, not yet gone.")


class Membership(StatusBlock):
    """Who trains."""

    epoch: Count = Field(description="Number of the running epoch: of starts of the processes.")
    cause: EpochCause = Field(description="Why the epoch began.")
    nodes: NodeCounts = Field(description="Nodes by state.")
    summary: str = Field(max_length=32, description="Nodes that train and most nodes wanted, such as 12/16.")
    since: Timestamp = Field(description="When the epoch began.")


class Progress(StatusBlock):
    """How far the run is."""

    step: Count = Field(description="Steps done.")
    total_steps: Count = Field(description="Steps of the whole run.")
    tokens: Count = Field(description="Tokens trained on.")
    loss: Decimal = Field(description="Training loss of the newest step, in nats a token.")
    tokens_per_second: Count = Field(description="Speed of the whole run.")
    estimated_completion_time: Timestamp | None = Field(
        None, description="When it will be complete at this speed."
    )
    update_time: Timestamp = Field(description="When these numbers were reported.")


class DurableCheckpoint(StatusBlock):
    """The newest committed checkpoint."""

    step: Count = Field(description="Steps done in it.")
    epoch: Count = Field(description="Epoch that wrote it.")
    manifest: Name = Field(description="Name of its folder.")


class CheckpointStatus(StatusBlock):
    """What the run could go on from."""

    memory_step: Count | None = Field(
        None, description="Newest step of which the nodes hold a complete snapshot."
    )
    durable: DurableCheckpoint | None = Field(None, description="The newest committed checkpoint.")


class CauseCount(StatusBlock):
    """Disruptions of one cause."""

    cause: Cause = Field(description="The cause.")
    count: Count = Field(description="How many there were.")


class Disruption(StatusBlock):
    """One interruption and what became of it."""

    epoch: Count = Field(description="Epoch that ended it.")
    cause: Cause = Field(description="The cause.")
    node: Name = Field("", description="Node where it happened.")
    recover_millis: Count | None = Field(
        None,
        description="From the fault being seen to the first new step, in milliseconds; absent until then.",
    )
    source: Literal["Initial", "Memory", "Durable"] = Field(description="What the run went on from.")
    lost_steps: Count = Field(0, description="Steps that had to be trained again.")


class Disruptions(StatusBlock):
    """What went wrong so far. Each epoch record is counted once."""

    accounted_epoch: Count = Field(0, description="Newest epoch record that is counted here.")
    by_cause: list[CauseCount] = Field(
        default=[],
        max_length=8,
        description="Counts by cause.",
        json_schema_extra={_LIST_MAP: "map", _LIST_KEYS: ["cause"]},
    )
    lost_steps: Count = Field(0, description="Steps that had to be trained again, in total.")
    recent: list[Disruption] = Field(
        default=[],
        max_length=RECENT_DISRUPTIONS,
        description="The newest disruptions, oldest first.",
        json_schema_extra={_LIST_MAP: "atomic"},
    )


class LostSeconds(StatusBlock):
    """Time that went into something other than new steps."""

    part: LostPart = Field(description="What it went into.")
    seconds: Count = Field(description="How much.")


class Goodput(StatusBlock):
    """How much of the time made progress that lasted."""

    permille: Permille = Field(description="productiveSeconds in thousandths of wallSeconds.")
    wall_seconds: Count = Field(description="Since the run was created, until it ended.")
    productive_seconds: Count = Field(description="Spent on steps that were kept.")
    lost: list[LostSeconds] = Field(
        default=[],
        max_length=16,
        description="The rest, by what it went into.",
        json_schema_extra={_LIST_MAP: "map", _LIST_KEYS: ["part"]},
    )


class OutputStatus(StatusBlock):
    """What a complete run left."""

    export: str = Field(max_length=1024, description="Where the exported model is: spec.output.uri.")


class Failure(StatusBlock):
    """The first cause of a failed run."""

    cause: Name = Field(description="The cause, or the reason why no cause applies.")
    slot: Count | None = Field(None, description="Seat of the worker.")
    node: Name = Field("", description="Node of the worker.")
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = Field(
        None, description="Exit code of the process."
    )
    message: str = Field("", max_length=FAILURE_MESSAGE_LIMIT, description="Its last output.")


class PartMillis(StatusBlock):
    """Unproductive time by what it went into, exactly."""

    part: LostPart = Field(description="What it went into.")
    millis: Count = Field(description="How much, in milliseconds.")


class CauseMoment(StatusBlock):
    """Disruptions of one cause at one time, for the budgets of spec.recovery.limits."""

    cause: Cause = Field(description="The cause.")
    at: Count = Field(description="Seconds since 1970; rounded where the window is long.")
    count: Count = Field(description="How many.")


class Streak(StatusBlock):
    """Restarts since training last got further, for spec.recovery.noProgressLimit."""

    restarts: Count = Field(description="How many.")
    restore_step: int = Field(ge=-1, le=2**53, description="Newest step that was restored.")
    last_step: int = Field(ge=-1, le=2**53, description="Furthest step that was reached.")
    first: Failure | None = Field(None, description="The cause that began it.")


class EndedMember(StatusBlock):
    """How a member ended whose loss no epoch record tells of yet; its pod may be gone by then."""

    slot: Count = Field(description="Its seat.")
    incarnation: Count = Field(description="Which pod of that seat.")
    reason: Name = Field("", description="Reason of the pod.")
    end: Name = Field("", description="Reason in its last words.")
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = Field(
        None, description="Exit code of its agent."
    )
    message: str = Field("", max_length=FAILURE_MESSAGE_LIMIT, description="Its last output.")


class MachineSpeed(StatusBlock):
    """What a process could do when the run began, beside all others of its node; 0 where it was not measured."""

    matmul_flops: Count = Field(description="FLOPs a second, in large products in the run's format.")
    memory_bytes_per_second: Count = Field(description="Bytes read and written by a copy.")
    local_link_bytes_per_second: Count = Field(0, description="Bytes that each sends to others of its node.")
    link_bytes_per_second: Count = Field(0, description="Bytes that each sends to other nodes.")


class Stepping(StatusBlock):
    """What the newest epoch had reached when last heard of: nobody may be left to tell it to the next record, and the
    last epoch has none.
    """

    epoch: Count = Field(description="Its number.")
    first_step: Count = Field(description="First step that it trained.")
    first_step_at_millis: Count = Field(description="When that step ended, in milliseconds since 1970.")
    last_step: Count = Field(description="Newest step.")
    last_step_at_millis: Count = Field(description="When that step ended, in milliseconds since 1970.")
    tokens: Count = Field(description="Tokens of the run at that step.")
    step_micros: Count = Field(description="Time of a step, in microseconds.")
    snapshot_stall_permille: Count = Field(0, description="Share of the time spent on memory snapshots.")
    peak_bytes: Count | None = Field(None, description="Most that a rank allocated, in bytes.")
    speed: MachineSpeed | None = Field(None, description="How fast the machine was when the run began.")


class MeasuredSize(StatusBlock):
    """How one size of the run really went, to correct predictions with."""

    nodes: Size = Field(description="Nodes that trained.")
    steps: Count = Field(description="Steps that the time is the median of.")
    step_micros: Count = Field(description="Time of a step, in microseconds.")
    peak_bytes: Count = Field(0, description="Most that a rank allocated, in bytes; 0 when nobody measured.")
    micro_batch: Count = Field(0, description="Sequences that a process computed at a time.")
    recompute: Name = Field("None", description="What was computed twice: None, Selective or Full.")


class TuningLook(StatusBlock):
    """Another way to train a size that looked better when last judged; taken when it does so again."""

    nodes: Count = Field(description="The size.")
    micro_batch: Count = Field(description="Micro-batch that it trains with until then.")
    recompute: Name = Field(description="What it computes twice until then.")
    looks: Count = Field(description="How often in a row it looked better.")


class Accounting(StatusBlock):
    """What the controller goes on counting from after its own restart. For programs, not for people."""

    productive_millis: Count = Field(0, description="Spent on steps that were kept, up to accountedEpoch.")
    lost: list[PartMillis] = Field(
        default=[],
        max_length=16,
        description="The rest of the time up to accountedEpoch, by what it went into.",
        json_schema_extra={_LIST_MAP: "map", _LIST_KEYS: ["part"]},
    )
    furthest_step: Count = Field(0, description="Furthest step that was ever reached.")
    durable_since: Count | None = Field(
        None, description="When the newest committed checkpoint was first seen, in seconds since 1970."
    )
    times: list[CauseMoment] = Field(
        default=[],
        max_length=400,
        description="When disruptions with a limit happened.",
        json_schema_extra={_LIST_MAP: "atomic"},
    )
    streak: Streak | None = Field(None, description="Restarts without progress.")
    stepping: Stepping | None = Field(
        None, description="What the newest epoch had reached when last heard of."
    )
    measured: list[MeasuredSize] = Field(
        default=[],
        max_length=MEASURED_SIZES,
        description="What the sizes that trained took, the newest last.",
        json_schema_extra={_LIST_MAP: "map", _LIST_KEYS: ["nodes"]},
    )
    tuning: TuningLook | None = Field(None, description="What measurements suggest for later epochs.")
    ended: list[EndedMember] = Field(
        default=[],
        max_length=8,
        description="Members of the newest accounted epoch that ended.",
        json_schema_extra={_LIST_MAP: "atomic"},
    )


class TrainingRunStatus(StatusBlock):
    """What is, as the controller last saw it."""

    observed_generation: Count = Field(0, description="Generation of the spec that was acted on.")
    conditions: list[Condition] = Field(
        default=[],
        max_length=16,
        description="The state, as conditions. The reason of Ready says what the run does now.",
        json_schema_extra={
            "default": [*initial_conditions(0, 0)],
            _LIST_MAP: "map",
            _LIST_KEYS: ["type"],
        },
    )
    resolved: Resolved | None = Field(None, description="What the run was frozen as.")
    plan: Plan | None = Field(None, description="How the run trains at its present size.")
    membership: Membership | None = Field(None, description="Who trains.")
    progress: Progress | None = Field(None, description="How far the run is.")
    checkpoint: CheckpointStatus | None = Field(None, description="What the run could go on from.")
    disruptions: Disruptions | None = Field(None, description="What went wrong so far.")
    goodput: Goodput | None = Field(None, description="How much of the time made progress that lasted.")
    output: OutputStatus | None = Field(None, description="What a complete run left.")
    failure: Failure | None = Field(None, description="The first cause of a failed run.")
    accounting: Accounting | None = Field(None, description="What the controller goes on counting from.")


def read_status(status: Mapping[str, Any]) -> TrainingRunStatus:
    """The status of an object as stored. Raises pydantic.ValidationError for one that is not ours."""
    return TrainingRunStatus.model_validate(status)


def status_json(status: TrainingRunStatus) -> dict[str, Any]:
    """The status in API form, as JSON data; fields without a value are left out."""
    data: dict[str, Any] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data
