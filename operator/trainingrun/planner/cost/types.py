"""One configuration to be costed, and its bills. Frozen data only.

Axes and micro-batches are as in `planner.types`; degrees multiply to the world: tensor x pipeline x context x data.
Experts are spread over `expert` ranks that are otherwise context and data ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from trainingrun.planner.types import ModelShape


class Sharding(Enum):
    """What data ranks share out among themselves, beyond the batch."""

    NONE = "none"
    OPTIMIZER = "optimizer"  # ZeRO 1, Megatron's distributed optimizer
    GRADIENTS = "gradients"  # ZeRO 2, FSDP SHARD_GRAD_OP
    WEIGHTS = "weights"  # ZeRO 3, FSDP


class Recompute(Enum):
    NONE = "none"
    SELECTIVE = "selective"  # what is large and cheap: which parts, says the framework
    FULL = "full"


@dataclass(frozen=True)
class Numerics:
    """Formats, as bytes per element unless named otherwise."""

    compute: str  # "fp32" | "tf32" | "fp16" | "bf16" | "fp8" | "mxfp8" | "nvfp4": of matrix products
    weights: float = 2  # as modules use them
    master: float = 4  # of the optimizer; 0 where `weights` are the only copy
    gradients: float = 4  # as they are accumulated
    moments: float = 8  # of the optimizer, both together for Adam
    activations: float = 2
    adapters: int = 0  # parameters trained instead of the weights (LoRA); 0: all weights are trained


@dataclass(frozen=True)
class Layout:
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual: int = 1  # stages of a pipeline rank
    schedule: str = "1F1B"  # "GPipe" | "1F1B" | "Interleaved1F1B" | "ZBV"
    sharding: Sharding = Sharding.NONE
    shard: int = 1  # data (x context) ranks that share; the others hold copies
    micro_batch: int = 1  # sequences
    accumulation: int = 1  # micro-batches a step and data rank
    sequence_parallel: bool = False
    recompute: Recompute = Recompute.NONE
    offload_optimizer: bool = False  # to the host
    offload_weights: bool = False
    stage_layers: tuple[int, ...] = ()  # of each pipeline rank, where they are not even

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data


@dataclass(frozen=True)
class Link:
    """What one accelerator (or process) sends in one direction while all its neighbours do."""

    bytes_per_second: float  # of large messages
    latency_seconds: float  # of one hop
    half_size_bytes: float = 0.0  # message size at half of the speed


@dataclass(frozen=True)
class Machine:
    """One kind of node. Everything per accelerator unless named otherwise."""

    name: str  # of the catalogue
    accelerators: int  # of a node (processes of a CPU node)
    memory_bytes: int  # that torch sees
    memory_bytes_per_second: float
    peak_flops: dict[str, float]  # data sheet, dense, by `Numerics.compute`
    measured_flops: dict[str, float]  # largest measured matrix products, by the same
    inside: Link  # to accelerators of the same node or NVLink domain
    between: Link  # to other nodes
    domain: int = 0  # accelerators of one NVLink domain, where that is more than a node; 0: the node
    host_link: Link = field(default_factory=lambda: Link(25e9, 1e-5))
    price_per_hour: float | None = None  # of a node


@dataclass(frozen=True)
class Framework:
    """How an implementation spends memory and time. Its coefficients are named and measured in
    `planner.cost.frameworks`; nothing else may ask for a framework by name.
    """

    name: str
    coefficients: dict[str, float]
    fused_loss: bool = False  # logits are not copied at the loss
    flash_attention: bool = True
    overlaps_data: bool = True  # gathers and scatters of data ranks hide behind compute
    times: str = ""  # whose coefficients of time it has, where they are not those of its name
    padded_vocabulary: int = 0  # the vocabulary is rounded up to a multiple of this x tensor; 0: it is not


@dataclass(frozen=True)
class Workload:
    """`sequence_length` tokens; `global_batch` sequences. `assumed`: fields that were not given but taken to
    be so."""

    model: ModelShape
    sequence_length: int
    global_batch: int
    numerics: Numerics
    layout: Layout
    machine: Machine
    framework: Framework
    dropout: bool = False
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bill:
    """Bytes of one rank at its peak, by part."""

    rank: str  # which: "first stage", "last stage", …
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float  # communication, gathered weights, temporary copies
    context: float  # driver, libraries, communicators: not of the allocator
    slack: float  # reserved by the allocator and not used
    host: float = 0.0

    @property
    def allocated(self) -> float:
        """As `torch.cuda.max_memory_allocated` says."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers

    @property
    def total(self) -> float:
        """As nvidia-smi says."""
        return self.allocated + self.context + self.slack


@dataclass(frozen=True)
class Step:
    """Seconds of one step of the slowest rank, by part; their sum is the step."""

    compute: float
    bubble: float
    tensor: float  # exposed communication, by axis
    context: float
    pipeline: float
    expert: float
    data: float
    optimizer: float
    other: float  # launching, data, what the framework adds
    model_flops: (
        float  # of the whole step, without recomputation; attention causal or whole as `flops_rule` says
    )
    flops_rule: str

    @property
    def total(self) -> float:
        return (
            self.compute
            + self.bubble
            + self.tensor
            + self.context
            + self.pipeline
            + self.expert
            + self.data
            + self.optimizer
            + self.other
        )
