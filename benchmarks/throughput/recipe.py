"""What all contestants do alike. Pure."""

from __future__ import annotations

from benchmarks.throughput.cases import Case

CORES = 2  # that all processes of a contestant have together
LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
MAX_GRAD_NORM = 1.0
STEPS = 100_000  # far more than are run
WARMUP_STEPS = 1000
PADDED_BATCH = 8  # documents a process and micro-batch: the default of transformers' Trainer


def threads(processes: int) -> int:
    return max(1, CORES // processes)


def accumulation(case: Case, processes: int) -> int:
    """Micro-batches of a step for the contestants that do not plan: as few as there are sequences for."""
    if case.global_batch % processes:
        raise ValueError(f"{case.name}: {case.global_batch} sequences over {processes} processes")
    return 1
