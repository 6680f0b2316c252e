"""What is trained in the throughput benchmark, and which bars it is held to. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OURS, TRAINER, PLAIN = "ours", "HF Trainer", "plain loop"


@dataclass(frozen=True)
class Case:
    """One model and one kind of documents; every contestant trains it with the same global batch, in FP32."""

    name: str
    model: dict[str, Any]  # of transformers, without vocabulary and positions
    vocabulary: int
    sequence_length: int
    global_batch: int  # sequences
    median_document: float  # tokens; lengths are log-normal
    document_spread: float  # sigma of the logarithm
    packing: str  # of ours; BestFit: the others pad documents instead of cutting a stream of them
    turns: int
    steps_a_turn: int  # at least; whole ones, within the turn
    contestants: tuple[str, ...]
    bars: dict[str, float] = field(default_factory=dict)  # contestant -> least ratio of ours to it

    @property
    def padded(self) -> bool:
        return self.packing == "BestFit"

    @property
    def config(self) -> dict[str, Any]:
        """The transformers config of the whole model."""
        return {
            **self.model,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.sequence_length,
        }


TINY_MODEL = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}

CASES = (
    Case(
        name="tiny",  # the model of examples/pretrain-stdlib.yaml
        model=TINY_MODEL,
        vocabulary=512,
        sequence_length=128,
        global_batch=16,
        median_document=2000,
        document_spread=1.0,
        packing="Concatenate",
        turns=7,
        steps_a_turn=60,
        contestants=(OURS, TRAINER, PLAIN),
        bars={TRAINER: 1.1},
    ),
    Case(
        name="100M",
        model={
            "model_type": "llama",
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 12,
            "tie_word_embeddings": True,
        },
        vocabulary=32_000,
        sequence_length=512,
        global_batch=2,
        median_document=4000,
        document_spread=1.0,
        packing="Concatenate",
        turns=3,
        steps_a_turn=3,
        contestants=(OURS, TRAINER, PLAIN),
        bars={TRAINER: 1.0, PLAIN: 0.97},
    ),
    Case(
        name="mixed lengths",
        model={**TINY_MODEL, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4},
        vocabulary=4096,
        sequence_length=512,
        global_batch=8,
        median_document=130,
        document_spread=0.8,
        packing="BestFit",
        turns=5,
        steps_a_turn=8,
        contestants=(OURS, TRAINER),
        bars={TRAINER: 1.3},
    ),
)


def named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
