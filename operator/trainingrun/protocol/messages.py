"""Messages between an agent and the membership service (HTTP, JSON bodies), protocol version 1.

    POST /v1/runs/{uid}/join     JoinRequest   -> JoinReply
    POST /v1/runs/{uid}/report   Report        -> Directive     heartbeat and news, answered at once
    POST /v1/runs/{uid}/poll     Poll          -> Directive     held until there is something newer than `seen`
    GET  /v1/runs/{uid}                        -> RunView       what membership knows (for the controller)
    GET  /healthz                              -> 200

Errors are `{"error": code, "message": text}`: 404 RunGone (the agent ends), 409 StaleIncarnation (ends), 410
UnknownSession (join again), 426 ProtocolMismatch (ends), 400 BadMessage, 503 Unavailable (try again).

On a cluster every request but those for health carries `Authorization: Bearer <token>`, over TLS: 401 Unauthenticated
and 403 Forbidden (another run's or another seat's); a member tries on, for a token is renewed.

The life of an epoch seen from an agent: `Prepare` (stop the ranks, report `prepared`) or `Pause` (stop at a step that
the ranks agree on, then report), then `Start` with the record. Ranks start only from a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainingrun.protocol.records import Epoch, EpochSummary, RankExit, Restore


@dataclass(frozen=True)
class HeldSnapshot:
    """Pieces of one snapshot that a node holds, sealed. A piece is (pipeline, shard, tensor) within `layout`."""

    epoch: int
    step: int
    layout: tuple[int, int, int]
    pieces: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class DurableCheckpoint:
    name: str  # folder
    epoch: int
    step: int


class AgentPhase(str, Enum):
    PREPARING = "Preparing"  # warming up, preparing data; not yet able to start ranks
    IDLE = "Idle"  # ready, no ranks
    RUNNING = "Running"
    PAUSED = "Paused"  # ranks stopped at the agreed step, after Pause
    FAILED = "Failed"  # a rank died; the others of this node were killed
    DONE = "Done"  # ranks finished the run


@dataclass(frozen=True)
class JoinRequest:
    protocol: tuple[int, int]  # [min, max]
    slot: int
    incarnation: int
    pod: str
    session: str
    node: str
    address: str
    store_port: int
    peer_port: int
    processes: int
    device: str
    running_epoch: int = 0  # ranks of this epoch are still running (membership was away)


@dataclass(frozen=True)
class JoinReply:
    protocol: int
    report_seconds: float  # how often to report
    poll_seconds: float  # how long a poll is held at most
    silence_seconds: float  # without a report for this long, a member counts as lost


@dataclass(frozen=True)
class Progress:
    """The newest step of the running epoch (rank 0's view; others send None)."""

    step: int
    loss: float
    tokens: int  # of the run
    tokens_per_second: float
    learning_rate: float
    total_steps: int
    summary: EpochSummary
    save_problem: str = ""  # why the newest durable checkpoint that was tried is not there


@dataclass(frozen=True)
class Report:
    session: str
    slot: int
    phase: AgentPhase
    epoch: int = 0  # of the ranks that run or ran last
    prepared: str = ""  # nonce of the proposal for which the ranks are stopped
    activity: str = ""  # for people: "tokenising", "restoring"
    snapshots: tuple[HeldSnapshot, ...] = ()
    durable: tuple[DurableCheckpoint, ...] = ()  # manifests found at the location
    location_fresh: bool = False  # nothing was ever written at the checkpoint location
    damaged: tuple[str, ...] = ()
    exits: tuple[RankExit, ...] = ()  # of `epoch`
    progress: Progress | None = None
    leaving: bool = False  # asked to end, and does so now: its ranks are dead, and its seat is free


@dataclass(frozen=True)
class Poll:
    session: str
    slot: int
    seen: int


class DirectiveKind(str, Enum):
    WAIT = "Wait"
    PAUSE = "Pause"
    PREPARE = "Prepare"
    START = "Start"
    LEAVE = "Leave"


@dataclass(frozen=True)
class Directive:
    """`seq` grows with every new directive to this member; the newest one replaces all before it."""

    seq: int
    kind: DirectiveKind = DirectiveKind.WAIT
    nonce: str = ""  # Prepare: of the proposal
    epoch: int = 0  # Pause: the epoch to pause; Prepare: the epoch proposed; Leave: the one that is complete
    record: Epoch | None = None  # Start
    reason: str = ""


@dataclass(frozen=True)
class MemberView:
    slot: int
    incarnation: int
    node: str
    phase: AgentPhase
    epoch: int
    activity: str
    silent_seconds: float
    in_epoch: bool


@dataclass(frozen=True)
class RunView:
    """What membership knows of a run."""

    run_uid: str
    epoch: int
    members: tuple[MemberView, ...]
    progress: Progress | None
    proposing: bool
    waiting_for: str  # why there is no newer epoch; "" when nothing is wanted
    blocked: str  # a reason that only a person can remove, e.g. "NoUsableCheckpoint: …"; "" normally
    restore: Restore | None
    suspicious_of_self: bool  # declares nobody lost at the moment
    memory_step: int | None = None  # newest step of which the members hold a whole copy in memory


@dataclass(frozen=True)
class Termination:
    """The agent's last words, written to its termination log: completion needs no membership."""

    exit_code: int
    reason: str  # Done | BadConfiguration | LocationInUse | NoUsableCheckpoint | MembershipLost | Left | Application
    message: str = ""
    epoch: int = 0
    step: int = 0
    tokens: int = 0
    loss: float = 0.0
    manifest: str = ""  # final durable checkpoint
    export: str = ""  # spec.output.uri, once the exported model is there
    summary: EpochSummary | None = None  # of the last epoch
