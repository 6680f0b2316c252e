"""What is compared: a family, a precision and a layout a row. No row is left out because it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2")
STEPS = 20

# Largest differences from the plain loop: (loss, gradient norm, parameters).
FP64_LIMITS = (1e-9, 1e-9, 1e-8)
FP32_LIMITS = (5e-6, float("inf"), float("inf"))


_DEGREES = ("tensor", "context", "shard", "replicate", "pipeline")


@dataclass(frozen=True)
class Row:
    """`kind` as `tests.trainer.comparing.a_recipe` takes it, `axes` as `layouts.a_rung` does."""

    kind: str
    axes: tuple[tuple[str, Any], ...]

    @property
    def precision(self) -> str:
        return "FP32" if self.kind.startswith("float32") else "FP64"

    @property
    def limits(self) -> tuple[float, float, float]:
        return FP32_LIMITS if self.precision == "FP32" else FP64_LIMITS

    @property
    def model(self) -> str:
        named = {
            "float64": "llama",
            "special": "llama, tied, with biases",
            "transformers": "llama, norms of transformers",
        }
        return named.get(self.kind) or self.kind.removeprefix("float32 ")

    @property
    def layout(self) -> str:
        shown = [f"{axis} {degree}" for axis, degree in self.axes if axis in _DEGREES]
        by_tokens = ", sequence parallel" if dict(self.axes).get("sequence_parallel") else ""
        return (" x ".join(shown) or "one process") + by_tokens

    @property
    def schedule(self) -> str:
        given = dict(self.axes)
        return str(given.get("schedule", "1F1B")) if "pipeline" in given else ""

    @property
    def processes(self) -> int:
        world = 1
        for axis, degree in self.axes:
            world *= degree if axis in _DEGREES else 1
        return world


def row(kind: str, **axes: Any) -> Row:
    return Row(kind, tuple(axes.items()))


def rows() -> list[Row]:
    """Llama over every axis and product, each other family over what is special about it, then spots in FP32."""
    return [*_llama(), *_families(), *_spots()]


def _llama() -> list[Row]:
    alone: list[dict[str, Any]] = [
        {},
        {"replicate": 4},
        {"shard": 4},
        {"tensor": 2},
        {"pipeline": 4, "micro_batch": 1},
        {"context": 2},
        {"context": 4},
    ]
    products: list[dict[str, Any]] = [
        {"replicate": 2, "shard": 2},
        {"tensor": 2, "replicate": 2},
        {"tensor": 2, "shard": 2},
        {"context": 2, "tensor": 2},
        {"context": 2, "shard": 2},
        {"context": 2, "replicate": 2},
        {"context": 2, "pipeline": 2},
        {"tensor": 2, "sequence_parallel": True},
        {"tensor": 2, "shard": 2, "sequence_parallel": True},
        {"tensor": 2, "context": 2, "sequence_parallel": True},
        {"tensor": 2, "pipeline": 2, "schedule": "ZBV", "sequence_parallel": True},
        {"pipeline": 2, "schedule": "ZBV", "micro_batch": 4},
    ]
    schedules = ("1F1B", "Interleaved1F1B", "ZBV")
    pipelines: list[dict[str, Any]] = [
        {"pipeline": 2, "schedule": schedule, **other}
        for schedule in schedules
        for other in ({}, {"shard": 2}, {"replicate": 2}, {"tensor": 2}, {"tensor": 2, "shard": 2})
    ]
    return [
        row("transformers", tensor=2, replicate=2),
        *(row("float64", **axes) for axes in (*alone, *products, *pipelines)),
        *(row("special", tensor=2, pipeline=2, shard=2, schedule=schedule) for schedule in schedules),
    ]


def _families() -> list[Row]:
    layouts: list[dict[str, Any]] = [
        {},
        {"tensor": 2},
        {"pipeline": 2},
        {"context": 2},
        {"tensor": 2, "shard": 2},
    ]
    small = [row(kind, **axes) for kind in FAMILIES[1:] for axes in layouts]
    tokens = [row(kind, tensor=2, sequence_parallel=True) for kind in FAMILIES[1:]]
    large = [row(kind, tensor=2, pipeline=2, replicate=2) for kind in FAMILIES[1:]]
    return small + tokens + large


def _spots() -> list[Row]:
    return [
        row("float32 llama", tensor=2, pipeline=2, shard=2),
        row("float32 qwen3", context=2, tensor=2),
        row("float32 gpt2", tensor=2, pipeline=2),
        row("float32 gemma", shard=2, replicate=2),
    ]
