"""transformers' Trainer as a careful user sets it up for a CPU; everything that is not said here is its default.

    python -m benchmarks.throughput.trainer_loop CASE CORPUS LOG      with the environment of torchrun

Contiguous blocks go without an attention mask (the fast path of sdpa). Documents of mixed length are batched as its
default is: in random order, padded to the longest of the micro-batch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.throughput import corpus
from benchmarks.throughput.cases import Case, named
from benchmarks.throughput.recipe import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    PADDED_BATCH,
    STEPS,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    accumulation,
    threads,
)
from benchmarks.throughput.step_log import StepLog

IGNORED = -100
PAD = 0


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Padded:
    """What DataCollatorForLanguageModeling(mlm=False) makes, without a tokenizer; counts what is real."""

    def __init__(self) -> None:
        self.targets = 0

    def __call__(self, items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        documents = [item["input_ids"] for item in items]
        self.targets += sum(len(document) - 1 for document in documents)
        pad = torch.nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(documents, batch_first=True, padding_value=PAD),
            "labels": pad(documents, batch_first=True, padding_value=IGNORED),
            "attention_mask": pad([torch.ones_like(document) for document in documents], batch_first=True),
        }


class Blocks:
    """What default_data_collator makes of rows of one length."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {key: torch.stack([item[key] for item in items]) for key in items[0]}


class Logs(TrainerCallback):
    def __init__(self, log: StepLog, collator: Padded | Blocks, world: int) -> None:
        self._log = log
        self._collator = collator
        self._world = world
        self._before = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if isinstance(self._collator, Blocks):
            self._log.over(tokens=self._collator.tokens, loss=None)
            return
        # Each process reads documents of the same lengths on average.
        targets, self._before = self._collator.targets - self._before, self._collator.targets
        self._log.over(tokens=targets * self._world, loss=None)


def main(case: Case, folder: Path, log: StepLog) -> None:
    world = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(threads(world))
    collator: Padded | Blocks
    if case.padded:
        rows, collator, size = corpus.documents(folder), Padded(), PADDED_BATCH
        parts = max(1, round(corpus.documents_a_step(case, folder) / world / size))
    else:
        rows, collator = corpus.blocks(case, folder), Blocks(case.global_batch * case.sequence_length)
        parts = accumulation(case, world)
        size = case.global_batch // world // parts
    config = AutoConfig.for_model(**case.config, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            use_cpu=True,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=parts,
            max_steps=STEPS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="cosine",
            warmup_steps=WARMUP_STEPS,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPSILON,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=MAX_GRAD_NORM,
            optim="adamw_torch_fused",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            ddp_backend="gloo" if world > 1 else None,
            ddp_find_unused_parameters=False if world > 1 else None,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=Rows(rows),
            data_collator=collator,
            callbacks=[Logs(log, collator, world)],
        ).train()


if __name__ == "__main__":
    main(named(sys.argv[1]), Path(sys.argv[2]), StepLog(Path(sys.argv[3]), on=os.environ["RANK"] == "0"))
