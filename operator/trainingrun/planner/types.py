"""What goes into a plan and what comes out. Frozen data only.

`plan(model, training, inventory) -> PlanPath` (in `planner.search`) is pure and fast, and raises `PlanError` when
nothing fits. All byte figures are for one process (rank) unless named otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainingrun.protocol.records import Rung


@dataclass(frozen=True)
class Experts:
    """Feed-forwards of which each token passes a few."""

    count: int
    per_token: int
    intermediate_size: int  # of one expert
    shared_intermediate_size: int = 0  # of the shared experts that every token passes, all together
    shared_gate: bool = (
        False  # a token's share of the shared experts is learned: one weight for each hidden element
    )
    leading_dense_layers: int = 0  # the first layers have a dense feed-forward instead
    every: int = 1  # after those, one layer in so many has experts, the last of each group
    router_bias: bool = False  # as a parameter
    bias: bool = False  # of the experts' matrices
    latent_size: int = 0  # experts work on projections of the hidden state to this size; 0: on itself

    def layers(self, of: int) -> int:
        """How many of the first `of` layers have experts."""
        return max(0, of - self.leading_dense_layers) // self.every


@dataclass(frozen=True)
class LatentAttention:
    """Keys, values (and queries) come from small common projections: multi-head latent attention."""

    query_rank: int  # 0: queries have a full matrix
    key_value_rank: int
    rotary_dim: int  # of a head's queries and keys; the keys' are common to all heads
    nope_dim: int  # of a head's queries and keys
    value_dim: int

    @property
    def query_dim(self) -> int:
        return self.rotary_dim + self.nope_dim


@dataclass(frozen=True)
class Hybrid:
    """Each of a model's layers is one of these, not attention and feed-forward together."""

    attention_layers: int
    feed_forward_layers: int  # of experts, where the model has them
    state_layers: int  # Mamba 2
    state_heads: int
    state_head_dim: int
    state_size: int
    groups: int
    kernel: int = 4


@dataclass(frozen=True)
class ModelShape:
    """A decoder, as its transformers config gives it. The defaults are those of the Llama family."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    vocabulary_size: int
    tied_embeddings: bool
    max_position_embeddings: int
    gated: bool = True  # the feed-forward has three matrices, not two
    rotary: bool = True  # False: positions are parameters
    query_bias: bool = False  # of queries, keys and values
    output_bias: bool = False  # of the attention's output
    feed_forward_bias: bool = False
    norm_bias: bool = False
    head_norms: bool = False  # queries and keys are normalised, each head with the same weights
    norms: int = (
        2  # of a layer: 1 where attention and feed-forward share it, 4 where outputs are normalised too
    )
    norm_weights: bool = True
    projection_norms: bool = False  # queries and keys are normalised, all heads together
    positions: int = -1  # rows of the learned positions; -1: max_position_embeddings unless `rotary`
    embedding_norm: bool = False  # embeddings are normalised before the first layer
    final_norm: bool = True
    head_bias: bool = False  # of the logits
    sinks: bool = False  # one logit for each head that stands for no token
    sliding_window: int = 0  # tokens that attention looks back in `sliding_layers`; 0: all
    sliding_layers: int = 0
    attention_dropout: bool = False  # of the weights of pairs of tokens
    hidden_dropout: bool = False  # of embeddings, and of what attention and feed-forward add
    prediction_layers: int = 0  # more layers that predict later tokens, in training only
    experts: Experts | None = None
    latent: LatentAttention | None = None
    hybrid: Hybrid | None = None


@dataclass(frozen=True)
class TrainingShape:
    sequence_length: int  # tokens
    global_batch_sequences: int
    parameter_bytes: int  # of trained weights, their gradients and the optimizer: 8 for FP64, else 4
    compute_bytes: int = (
        0  # of what modules compute with and keep: 2 for BF16 and FP16; 0: as parameter_bytes
    )
    optimizer: str = "AdamW"
    averaged: bool = False  # a moving average of the weights is kept
    z_loss: bool = False  # logits are looked at a second time
    eager: bool = False  # attention keeps the weights of all pairs of tokens
    activation_checkpointing: str = "None"  # None | Selective | Full | Auto
    pinned: dict[str, int] = field(default_factory=dict)  # axis -> degree, from spec.parallelism.axes
    schedule: str = "1F1B"  # of a pipeline
    any_schedule: bool = False  # accelerators may be planned with another one
    sequence_parallel: bool = False  # tensor ranks share the tokens between layers
    engine: str = "Native"  # Native | DeepSpeed
    zero_stage: int | None = None  # of the engine DeepSpeed; None: the lowest that fits
    offload: str = "None"  # of the engine DeepSpeed: None | Optimizer | OptimizerAndParameters
    memory_copies: int = 1  # of the state, that memory should hold where there are nodes for it

    @property
    def context(self) -> int:
        """Ranks that share the tokens of each sequence; never chosen, only asked for."""
        return self.pinned.get("context", 1)

    @property
    def mixed(self) -> bool:
        """Whether modules compute in another format than the weights are trained in."""
        return self.compute_bytes not in (0, self.parameter_bytes)

    @property
    def activation_bytes(self) -> int:
        return self.compute_bytes or self.parameter_bytes


@dataclass(frozen=True)
class NodeShape:
    """What one worker pod gets."""

    processes: int
    memory_bytes: (
        int  # of the node (all its processes); for accelerators: memory of one accelerator x processes
    )
    cores: float
    device: str  # "cpu" or the accelerator's resource name, e.g. nvidia.com/gpu
    flops_per_second: float  # of one process, achievable
    link_bytes_per_second: float  # between nodes, per node
    local_link_bytes_per_second: float  # between processes of one node
    reserved_bytes_per_process: int  # interpreter, libraries, communication buffers
    host_memory_bytes: int = (
        0  # beside accelerators, of the node: snapshots live there; 0 on CPU nodes or when not stated
    )
    memory_bytes_per_second: float = 5e9  # of one process: bounds the optimizer's pass
    name: str = ""  # of the catalogue entry, for people


@dataclass(frozen=True)
class Inventory:
    """The machines a run may use: all of one shape, `min_nodes`..`max_nodes` of them."""

    node: NodeShape
    min_nodes: int
    max_nodes: int


@dataclass(frozen=True)
class MemoryBill:
    """Predicted peak bytes of one process, by part, on the fullest rank."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    buffers: int
    reserved: int
    snapshots: int  # two memory snapshots, and the copy that a durable checkpoint is written from
    host: int = 0  # snapshots in the memory of an accelerator's host, a buddy's included; not in `total`
    buddies: int = 0  # two snapshots of another node; beside accelerators they are in `host`

    @property
    def total(self) -> int:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.buffers
            + self.reserved
            + self.snapshots
            + self.buddies
        )


@dataclass(frozen=True)
class PlannedRung:
    rung: Rung
    memory: MemoryBill
    available_bytes: int  # per process
    step_seconds: float
    tokens_per_second: float
    model_flops_per_step: float
    flops_utilisation: float  # of flops_per_second x world
    bubble: float  # share of the step idle in the pipeline, 0..1
    communication: float  # share of the step, exposed, 0..1
    padding: float  # share of the sequences computed that weigh nothing, 0..1
    reasons: tuple[str, ...]  # one for each choice: axes, sharding, micro-batch, copies, usefulness
    join_bytes: int = 0  # of the state that a joining node loads from others; 0 where no other node has them
    join_seconds: float = 0.0  # what that takes over its link; those who stay load nothing


@dataclass(frozen=True)
class PlanPath:
    """One plan for every size from min_nodes to max_nodes, ascending."""

    rungs: tuple[PlannedRung, ...]
    parameters: int
    reason: str  # why this model-parallel shape
    planner_version: str

    @property
    def begins(self) -> int:
        """The fewest nodes that are of use; more than any where none is."""
        useful = (planned.rung.nodes for planned in self.rungs if planned.rung.useful)
        return next(useful, self.rungs[-1].rung.nodes + 1)
