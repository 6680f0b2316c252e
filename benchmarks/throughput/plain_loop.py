"""The loop that a careful user writes by hand: transformers' model, contiguous blocks, fused AdamW, DDP over gloo.

python -m benchmarks.throughput.plain_loop CASE CORPUS LOG        with the environment of torchrun
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.throughput import corpus
from benchmarks.throughput.cases import Case, named
from benchmarks.throughput.recipe import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    STEPS,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    accumulation,
    threads,
)
from benchmarks.throughput.step_log import StepLog


def learning_rate_share(step: int) -> float:
    if step < WARMUP_STEPS:
        return step / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)))


def main(case: Case, folder: Path, log: StepLog) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(threads(world))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    config = AutoConfig.for_model(**case.config, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    step_of = DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_share)
    rows = corpus.blocks(case, folder)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    parts = accumulation(case, world)
    size = case.global_batch // world // parts
    for step in range(STEPS):
        total = 0.0
        for part in range(parts):
            first = step * case.global_batch + (part * world + rank) * size
            chosen = order[torch.arange(first, first + size) % len(order)]
            ids = rows[chosen]
            logits = step_of(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / parts
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        log.over(tokens=case.global_batch * case.sequence_length, loss=total)


if __name__ == "__main__":
    main(named(sys.argv[1]), Path(sys.argv[2]), StepLog(Path(sys.argv[3]), on=os.environ["RANK"] == "0"))
