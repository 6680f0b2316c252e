"""The planner's bill is what our own trainer allocates, part by part: real steps on real ranks, tensor by tensor."""

from __future__ import annotations

import pytest
import torch
from benchmarks.memory.live import REST, LiveBytes
from benchmarks.memory.part_cases import GEMMA, GPT2, LLAMA, NO_DROPOUT, QWEN3, PartCase
from benchmarks.memory.part_rows import BAR, rows_of

MIB = 1 << 20
CASES = (
    PartCase("Llama", LLAMA),
    PartCase("Llama", LLAMA, precision="BF16", optimizer="Lion"),
    PartCase("short", LLAMA, sequence_length=128, optimizer="Muon"),
    PartCase("long", LLAMA, sequence_length=512, micro_batch=1, recompute="Selective", optimizer="Adafactor"),
    PartCase("Llama", LLAMA, recompute="Full", optimizer="AdamW8bit"),
    PartCase("eager", LLAMA, overrides={"attention": "Eager", "zLoss": 1e-4, "emaDecay": 0.99}),
    PartCase("GPT-2", GPT2),
    PartCase("GPT-2 in half", {**GPT2, **NO_DROPOUT}, precision="BF16"),
    PartCase("Qwen3", QWEN3),
    PartCase("Gemma", GEMMA),
    PartCase("shard", LLAMA, axes={"shard": 2}, accumulation=1),
    PartCase("shard", LLAMA, axes={"shard": 2}, precision="BF16", accumulation=3),
    PartCase("tensor", LLAMA, axes={"tensor": 2}, sequence_parallel=True),
    PartCase("pipeline", LLAMA, axes={"pipeline": 2}, accumulation=4),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.precision}-{case.optimizer}")
def test_each_part_of_the_bill_is_what_the_ranks_allocate(case: PartCase) -> None:
    for row in rows_of(case):
        for part, (predicted, allocated) in row.parts.items():
            assert allocated > 0
            assert predicted == pytest.approx(allocated, rel=BAR), (part, row.allocated, row.bill)


def test_a_tensor_counts_while_something_holds_its_memory() -> None:
    with LiveBytes() as live:
        whole = torch.zeros(MIB // 4)
        view = whole[:10]
        del whole
        assert live.part(REST) == MIB  # the view holds all of it
        live.belongs("kept", [view])
        twice = torch.zeros(MIB // 4)
        twice.untyped_storage().resize_(0)
        assert (live.part("kept"), live.part(REST)) == (MIB, 0)
        assert live.most_rest == MIB
        del view, twice
        assert live.now.total() == 0
        assert live.peak == {"kept": MIB, REST: MIB}
