"""What a source of measurements means by its columns: which framework ran, what its memory figure is, which FLOPs
its rates count. From the sources' own descriptions; the first pattern that matches a source's name decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """`memory`: "allocated" is torch's peak in GiB, "device" what nvidia-smi says in GB, context included.
    `rank`: which rank was looked at. `flops`: the rule that its rates follow, see `flops.py`.
    """

    framework: str
    memory: str = "allocated"
    rank: str = "fullest"
    flops: str = "model, whole attention"
    gradient_bytes: float = 4  # where weights are in half precision
    precision: str = "bf16"  # where a row does not say
    # Where a row does not say: "none", "full", "least" (a recipe that runs: as little as fits), or "where
    # small" (full on small or several accelerators), "with sequence parallelism" (full there, else none).
    recompute: str = "none"
    sequence: int = 2048  # where a row does not say
    else_spends: str = ""  # the same, where `spends` does not fit
    spends: str = ""  # an older or newer state of the framework, as memory goes
    dropout: bool = False
    micro_batch: int = 1  # where a row does not say; 0: all of a data rank's sequences at once
    refused: str = ""  # why its rows cannot be costed
    unit: float = float(1 << 30)  # of its memory figures
    per_micro_batch: bool = False  # its times are of one micro-batch, not of a step
    batch: int | None = None  # sequences of the global batch, where a row does not say
    length: float = 1.0  # its times are of examples that are shorter than seq_len, by this much on average


# Rates of these count the recomputed forward pass too.
HARDWARE = "hardware, whole attention"
CAUSAL = "model, causal attention"

SOURCES: tuple[tuple[str, Source], ...] = (
    (r"megatron-lm ci", Source("megatron", rank="last")),
    (r"megatron-bridge", Source("megatron-bridge", flops=CAUSAL, recompute="least")),
    (r"simumax", Source("megatron", flops=CAUSAL)),
    (r"kwai", Source("megatron-kwai", else_spends="megatron-kwai-offloading")),
    (r"get_training_info", Source("megatron-2023", dropout=True, unit=1e9)),
    (r"mbridge", Source("megatron-bridge", sequence=4096)),
    (r"nemo automodel", Source("automodel", recompute="least", gradient_bytes=2, flops=CAUSAL)),
    (r"nemo|dgxc", Source("nemo", recompute="least")),
    (
        r"long-seq support",
        Source("megatron-deepspeed", flops=HARDWARE, recompute="with sequence parallelism", precision="fp16"),
    ),
    (r"bloom", Source("megatron-deepspeed", memory="device", flops=HARDWARE, gradient_bytes=2)),
    (
        r"tr3m",
        Source(
            "megatron-deepspeed",
            memory="device",
            spends="megatron-deepspeed-2021",
            flops="parameters",
            gradient_bytes=2,
            precision="fp16",
            dropout=True,
        ),
    ),
    (
        r"tr8",
        Source(
            "megatron-deepspeed",
            memory="device",
            spends="megatron-deepspeed-2021",
            flops="parameters",
            gradient_bytes=2,
            precision="fp16",
            batch=2048,
        ),
    ),
    (
        r"gpt2 experiments",
        Source(
            "megatron-deepspeed",
            memory="device",
            spends="megatron-deepspeed-early",
            else_spends="megatron-deepspeed-early-offloading",
            flops="parameters",
            gradient_bytes=2,
            precision="fp16",
            dropout=True,
        ),
    ),
    (r"sailor", Source("sailor", gradient_bytes=2, precision="fp16", dropout=True)),
    (r"vtrain", Source("megatron-2021", gradient_bytes=2, flops=HARDWARE, precision="fp16", dropout=True)),
    (
        r"sc'?21|narayanan",
        Source("megatron-2021", gradient_bytes=2, flops=HARDWARE, precision="fp16", dropout=True),
    ),
    (
        r"megatron-lm images|tables\.tex",
        Source("megatron-2021", gradient_bytes=2, flops=HARDWARE, precision="fp16", dropout=True),
    ),
    (r"megatron", Source("megatron")),
    (r"llm-foundry|mosaic", Source("llm-foundry")),
    (r"internevo|internlm", Source("internevo", memory="device", flops=HARDWARE, gradient_bytes=2)),
    (r"litgpt", Source("litgpt", unit=1e9, gradient_bytes=2, per_micro_batch=True, length=0.15)),
    (
        r"torchtune.*optimi[sz]ation flags",
        Source("torchtune", refused="its rows differ in switches that no column names"),
    ),
    (r"torchtune", Source("torchtune", gradient_bytes=2, recompute="where small", micro_batch=4)),
    (r"torchtitan", Source("torchtitan", flops="model, whole attention")),
    (r"fms-fsdp", Source("fms-fsdp", gradient_bytes=2, sequence=4096)),
    (r"jax|pax|maxtext", Source("jax", recompute="least")),
    (r"colossal", Source("colossalai", gradient_bytes=2, recompute="least", micro_batch=0)),
    (r"xtuner", Source("xtuner", gradient_bytes=2, recompute="full")),
    (r"peft", Source("transformers", gradient_bytes=4, precision="fp32", sequence=256)),
    (r"primus", Source("primus", flops=CAUSAL)),
    (r"deepspeed", Source("deepspeed", gradient_bytes=2)),
    (r"oom issue", Source("transformers", gradient_bytes=2, recompute="none", micro_batch=8)),
)
_MATCHERS = tuple((re.compile(pattern), source) for pattern, source in SOURCES)
UNKNOWN = Source("megatron")


def source_of(name: str) -> tuple[Source, bool]:
    """The source, and whether it is known."""
    for matcher, source in _MATCHERS:
        if matcher.search(name.lower()):
            return source, True
    return UNKNOWN, False
