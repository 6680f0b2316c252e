"""What a cut can do with at least: looking at two micro-batches is looking at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.planner_builders import LLAMA_3_8B, a_model, a_node, a_training, h100_node

from trainingrun.planner.candidates import micro_batches, split, weigh
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import memory_bill
from trainingrun.planner.types import ModelShape, TrainingShape

CUTS = [
    (Cut(1, 8, 1), {}),
    (Cut(1, 2, 2), {"compute_bytes": 2}),
    (Cut(1, 8, 1, zero=2), {"engine": "DeepSpeed"}),
    (Cut(4, 3, 1), {"compute_bytes": 2}),
    (Cut(2, 4, 1, schedule="Interleaved1F1B"), {"schedule": "Interleaved1F1B"}),
    (Cut(2, 2, 2, schedule="ZBV"), {"schedule": "ZBV"}),
]


@pytest.mark.parametrize(("cut", "changes"), CUTS)
@pytest.mark.parametrize("model", [a_model(layers=8), LLAMA_3_8B])
@pytest.mark.parametrize("mode", ["None", "Full"])
def test_no_micro_batch_in_between_needs_less(
    cut: Cut, changes: dict[str, object], model: ModelShape, mode: str
) -> None:
    training: TrainingShape = replace(a_training(activation_checkpointing=mode), **changes)
    for node in (a_node(8), h100_node()):
        for sequences, length in ((97, 64), (24, 64), (64, 2048)):
            asked = replace(training, global_batch_sequences=sequences, sequence_length=length)
            found = weigh(model, asked, node, cut, 1)
            assert found is not None
            every = {}
            for size in micro_batches(asked, cut, 1):
                one = split(asked, cut, 1, micro_batch=size)
                if one is not None:
                    of = {"micro_batch": size, "accumulation": one.accumulation}
                    replicate = 1 if cut.zero else 2
                    every[size] = memory_bill(model, asked, node, cut, replicate=replicate, **of).total
            assert found.bill.total == every[found.micro_batch] == min(every.values())
