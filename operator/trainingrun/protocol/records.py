"""The create-only records of a run: revisions (what is trained, frozen) and epochs (who trains, from where).

An epoch exists if and only if its record exists: creating the record is the activation. The records are also the
accounting: whoever adds up what a run lost reads them and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

NATIVE = "Native"  # the engine that everything but `Rung.engine` is about, unless said otherwise

STAGES_PER_RANK = {"1F1B": 1, "Interleaved1F1B": 2, "ZBV": 2}
"""Pipeline schedules, and how many stages each rank of a pipeline then computes."""


@dataclass(frozen=True)
class Rung:
    """How `nodes` machines train: one entry of a plan's path over sizes.

    world = replicate x pipeline x shard x context x tensor = nodes x processes per node, in this order of ranks:
    tensor varies fastest, then context, shard, pipeline, and replicate slowest. So the ranks of a copy of the state
    follow each other, and copies lie on different nodes wherever one fits on fewer nodes than there are. Data
    parallel degree = replicate x shard. The ranks of a context group read the same sequences, and compute a part of
    each.
    Every global batch is `replicate*shard` data ranks x `accumulation` micro-batches x `micro_batch` sequences, of
    which the last `padding_sequences` weigh nothing.
    """

    nodes: int
    processes_per_node: int
    pipeline: int
    replicate: int
    shard: int
    tensor: int
    micro_batch: int  # sequences
    accumulation: int  # micro-batches a data rank and step
    padding_sequences: int
    state_copies: int  # nodes that hold the least-held piece of the training state, buddies included
    useful: bool = True  # False: no better than a smaller rung; never chosen
    reason: str = ""
    activation_checkpointing: str = (
        "None"  # None | Selective (every second layer) | Full: what is computed twice
    )
    context: int = 1
    sequence_parallel: bool = False  # tensor ranks share the tokens of what is not cut by heads
    schedule: str = "1F1B"  # a key of STAGES_PER_RANK; how the stages of a pipeline take turns
    engine: str = NATIVE  # Native | DeepSpeed: what trains
    zero_stage: int = 0  # DeepSpeed only: 1 | 2 | 3
    buddies: bool = False  # each node keeps the snapshots of the next one too, which no other has

    @property
    def data(self) -> int:
        return self.replicate * self.shard

    @property
    def world(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.context * self.tensor

    @property
    def stages(self) -> int:
        """Parts that the layers are cut into along the pipeline."""
        return 1 if self.pipeline == 1 else self.pipeline * STAGES_PER_RANK[self.schedule]

    def stages_of(self, index: int) -> tuple[int, ...]:
        """Stages that the rank at `index` of the pipeline computes, ascending. ZBV runs down the ranks and back up."""
        if self.stages == self.pipeline:
            return (index,)
        return (index, self.stages - 1 - index if self.schedule == "ZBV" else self.pipeline + index)

    @property
    def layout(self) -> tuple[int, int, int]:
        """(pipeline, shard, tensor): how one copy of the state is cut. Equal layouts need no reshaping: the schedule
        is the same for the whole of a run, and the ranks of a context group hold copies."""
        return (self.pipeline, self.shard, self.tensor)


@dataclass(frozen=True)
class Revision:
    """`<run>-r<k>`: everything that a running run is compared with. Frozen."""

    name: str
    run: str
    run_uid: str
    revision: int
    spec: dict[str, Any]  # the resolved spec, in API form (camelCase keys, defaults filled in)
    rungs: tuple[Rung, ...]  # ascending by nodes, minNodes..maxNodes
    plan: dict[str, Any]  # the planner's full answer (memory bill, predictions, reasons), for people
    planner_version: str
    nonce: str = ""
    pod_template: dict[str, Any] = field(default_factory=dict)  # rendered; {} for local processes


@dataclass(frozen=True)
class Member:
    """One seat of an epoch. The order of members is the order of their ranks."""

    slot: int
    incarnation: int
    session: str  # the agent process, new at each of its starts
    node: str
    address: str
    peer_port: int  # serves this node's snapshots


@dataclass(frozen=True)
class Store:
    """The TCPStore of an epoch, served by the agent of its first member. Keys live under `prefix`."""

    host: str
    port: int
    prefix: str


class RestoreSource(str, Enum):
    INITIAL = "Initial"  # fresh weights; only when no checkpoint was ever committed
    MEMORY = "Memory"
    DURABLE = "Durable"


@dataclass(frozen=True)
class SnapshotId:
    """A step of one epoch. (epoch, step) orders snapshots: the lineage is the newest epoch's."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Restore:
    """Where the ranks of an epoch take their state from. `step` steps are done; the next trained is step + 1."""

    source: RestoreSource
    step: int = 0
    epoch: int = 0  # epoch that wrote it; 0 for Initial
    manifest: str = ""  # Durable: name of the checkpoint folder
    layout: tuple[int, int, int] = (1, 1, 1)  # Memory: (pipeline, shard, tensor) it was cut by
    holders: tuple[int, ...] = ()  # Memory: slots that hold it


class Trigger(str, Enum):
    """Why membership proposed the epoch (what it saw; the cause is judged by the controller)."""

    STARTED = "Started"
    MEMBER_LOST = "MemberLost"
    PROCESS_DIED = "ProcessDied"
    JOINED = "Joined"
    RESTORE_FAILED = "RestoreFailed"


@dataclass(frozen=True)
class RankExit:
    """How a rank of the previous epoch ended, as its agent reports it."""

    slot: int
    local_rank: int
    exit_code: int  # as the shell has it: 137 for SIGKILL
    message: str = ""  # last output, at most 2 KB


@dataclass(frozen=True)
class Lost:
    """A member of the previous epoch that vanished."""

    slot: int
    incarnation: int
    node: str
    reason: str  # Silent | ConnectionClosed | Left | Restarted | Replaced | Unresponsive


@dataclass(frozen=True)
class MachineSpeed:
    """What a process could do when its run began, beside all others of its node; the slowest of them. 0: not
    measured.
    """

    matmul_flops: int  # a second, in large products in the run's format
    memory_bytes_per_second: int  # read and written, in a copy
    local_link_bytes_per_second: int = 0  # sent by each, in an all-reduce inside one node
    link_bytes_per_second: int = 0  # the same over several nodes


@dataclass(frozen=True)
class EpochSummary:
    """What an epoch achieved, as last reported; `*_at` are seconds since 1970."""

    epoch: int = 0
    first_step_at: float = 0.0  # 0: never stepped
    first_step: int = 0
    last_step: int = 0
    last_step_at: float = 0.0
    tokens: int = 0  # of the run, at last_step
    step_seconds: float = 0.0  # median
    data_wait_seconds: float = 0.0  # median: the part of a step in which rank 0 waited for its data
    snapshot_stall_permille: int = 0
    restore_seconds: float = 0.0
    durable: str = ""  # newest manifest known to be committed
    durable_step: int = 0
    peak_bytes: int = 0  # most that the allocator of any rank handed out in this epoch; 0: nobody measured
    speed: MachineSpeed | None = None  # measured where it started from nothing


@dataclass(frozen=True)
class Epoch:
    """`<run>-e<n>`."""

    name: str
    run: str
    run_uid: str
    epoch: int
    revision: str  # name of the revision
    nonce: str  # of the proposal; tells ours from another's after a conflict
    created_at: float
    members: tuple[Member, ...]
    rung: Rung
    store: Store
    restore: Restore
    trigger: Trigger
    detected_at: float  # when the fault or the newcomer was seen
    lost: tuple[Lost, ...] = ()
    exits: tuple[RankExit, ...] = ()
    damaged: tuple[str, ...] = ()  # checkpoints that failed their checksums and must not be used again
    previous: EpochSummary = field(default_factory=EpochSummary)
    shares_member: bool = (
        True  # False: nobody vouches for the writers before; write `fence-e<N>` before anything else
    )
