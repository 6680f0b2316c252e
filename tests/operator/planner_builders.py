"""Builders for the planner's tests: a small model whose sums can be done by hand, bare nodes, published
shapes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainingrun.planner.hardware import gpus
from trainingrun.planner.inputs import accelerator_node
from trainingrun.planner.types import Inventory, ModelShape, NodeShape, TrainingShape

GIB = 1 << 30


def a_model(**changes: Any) -> ModelShape:
    """hidden 64, feed-forward 128, 2 layers, 4 heads of 16, 2 key-value heads, vocabulary 256, untied."""
    model = ModelShape(
        model_type="llama",
        hidden_size=64,
        intermediate_size=128,
        layers=2,
        attention_heads=4,
        key_value_heads=2,
        head_dim=16,
        vocabulary_size=256,
        tied_embeddings=False,
        max_position_embeddings=8192,
    )
    return replace(model, **changes)


def a_training(**changes: Any) -> TrainingShape:
    """32 tokens, 8 sequences, FP32."""
    return replace(TrainingShape(sequence_length=32, global_batch_sequences=8, parameter_bytes=4), **changes)


def a_node(processes: int = 2, memory_per_process: int = GIB, **changes: Any) -> NodeShape:
    """A CPU node on which nothing is reserved."""
    node = NodeShape(
        processes=processes,
        memory_bytes=processes * memory_per_process,
        cores=float(processes),
        device="cpu",
        flops_per_second=10e9,
        link_bytes_per_second=1e9,
        local_link_bytes_per_second=1e9,
        reserved_bytes_per_process=0,
    )
    return replace(node, **changes)


def machines(node: NodeShape | None = None, min_nodes: int = 1, max_nodes: int = 2) -> Inventory:
    return Inventory(node or a_node(), min_nodes, max_nodes)


def h100_node() -> NodeShape:
    entry = gpus.find("NVIDIA-H100-80GB-HBM3")
    if entry is None:
        raise LookupError("the catalogue has no H100")
    return accelerator_node(entry, 8, cores=96, host_memory_bytes=900 * GIB)


def llama(
    hidden: int, feed_forward: int, layers: int, heads: int, key_value: int, vocabulary: int
) -> ModelShape:
    return ModelShape(
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=feed_forward,
        layers=layers,
        attention_heads=heads,
        key_value_heads=key_value,
        head_dim=hidden // heads,
        vocabulary_size=vocabulary,
        tied_embeddings=False,
        max_position_embeddings=8192,
    )


LLAMA_2_7B = llama(4096, 11008, 32, 32, 32, 32000)
LLAMA_2_70B = llama(8192, 28672, 80, 64, 8, 32000)
LLAMA_3_8B = llama(4096, 14336, 32, 32, 8, 128256)
LLAMA_32_1B = replace(llama(2048, 8192, 16, 32, 8, 128256), tied_embeddings=True)
