"""Configurations whose memory is counted by part: model, precision, optimizer, and the layout of one or two ranks.

Layouts are given, not planned: each row is to test one thing. Pure, but for reading the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.memory.cases import Case
from trainingrun.api.load import parse, resolve
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import stage_bill
from trainingrun.planner.types import MemoryBill
from trainingrun.planner.weighing import as_chosen
from trainingrun.protocol.records import Rung

LLAMA: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 2048,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "head_dim": 64}
GEMMA: dict[str, Any] = {**LLAMA, "model_type": "gemma", "head_dim": 64, "tie_word_embeddings": True}


@dataclass(frozen=True)
class PartCase:
    name: str
    model: dict[str, Any]
    sequence_length: int = 256
    precision: str = "FP32"
    optimizer: str = "AdamW"
    recompute: str = "None"
    overrides: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    schedule: str = "1F1B"
    sequence_parallel: bool = False
    micro_batch: int = 2
    accumulation: int = 2
    zero: int = 0

    @property
    def rung(self) -> Rung:
        axes = {
            axis: self.axes.get(axis, 1) for axis in ("pipeline", "replicate", "shard", "context", "tensor")
        }
        world = 1
        for degree in axes.values():
            world *= degree
        return Rung(
            nodes=1,
            processes_per_node=world,
            **axes,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            padding_sequences=0,
            state_copies=1,
            activation_checkpointing=self.recompute,
            sequence_parallel=self.sequence_parallel,
            schedule=self.schedule,
            engine="DeepSpeed" if self.zero else "Native",
            zero_stage=self.zero,
        )

    def spec(self) -> dict[str, Any]:
        """Resolved. Nothing is read from its places."""
        nowhere, rung = Path("/nowhere"), self.rung
        case = Case(
            self.name,
            self.model,
            sequence_length=self.sequence_length,
            global_batch=self.micro_batch * self.accumulation * rung.data,
            precision=self.precision,
            processes=rung.world,
            activations=self.recompute,
            axes={axis: self.axes[axis] for axis in ("tensor", "pipeline", "context") if axis in self.axes},
        )
        manifest = case.manifest(nowhere / "corpus", nowhere / "tokenizer", nowhere)
        manifest["spec"]["training"] |= {
            "optimizer": {"name": self.optimizer, "learningRate": 3e-4},
            "overrides": self.overrides,
        }
        manifest["spec"]["parallelism"] |= {"pipelineSchedule": self.schedule}
        if self.sequence_parallel:
            manifest["spec"]["parallelism"]["sequenceParallel"] = True
        if self.zero:
            manifest["spec"]["parallelism"] |= {"engine": "DeepSpeed", "deepspeed": {"zeroStage": self.zero}}
        return resolve(parse(manifest, None), None)

    def bill(self, pipeline_rank: int) -> MemoryBill:
        """The planner's, of the ranks of a stage."""
        rung = self.rung
        model, training, inventory = planner_inputs(self.spec())
        cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule, rung.zero_stage)
        return stage_bill(
            model,
            as_chosen(training, rung),
            inventory.node,
            cut,
            pipeline_rank,
            replicate=rung.replicate,
            micro_batch=rung.micro_batch,
            accumulation=rung.accumulation,
        )


_OPTIMIZERS = ("AdamW8bit", "Lion", "Muon", "Adafactor")
PART_CASES = (
    PartCase("Llama", LLAMA),
    PartCase("Llama", LLAMA, precision="BF16"),
    PartCase("Llama, 128 tokens", LLAMA, sequence_length=128, micro_batch=4),
    PartCase("Llama, 1024 tokens", LLAMA, sequence_length=1024, micro_batch=1),
    PartCase("Llama", LLAMA, recompute="Selective"),
    PartCase("Llama", LLAMA, recompute="Full"),
    PartCase("Llama, z-loss and EMA", LLAMA, overrides={"zLoss": 1e-4, "emaDecay": 0.99}),
    PartCase("Llama, eager", LLAMA, overrides={"attention": "Eager"}),
    PartCase("GPT-2", GPT2),
    PartCase("GPT-2, no dropout", {**GPT2, **NO_DROPOUT}),
    PartCase("GPT-2, no dropout", {**GPT2, **NO_DROPOUT}, precision="BF16"),
    PartCase("Qwen3", QWEN3),
    PartCase("Gemma, tied", GEMMA),
    *(PartCase("Llama", LLAMA, optimizer=name) for name in _OPTIMIZERS),
    PartCase("Llama", LLAMA, axes={"shard": 2}, accumulation=1),
    PartCase("Llama", LLAMA, axes={"shard": 2}, accumulation=4),
    PartCase("Llama", LLAMA, precision="BF16", axes={"shard": 2}, accumulation=4),
    PartCase("Llama", LLAMA, axes={"replicate": 2}),
    PartCase("Llama", LLAMA, axes={"tensor": 2}),
    PartCase("Llama, z-loss", LLAMA, axes={"tensor": 2}, overrides={"zLoss": 1e-4}),
    PartCase("Llama", LLAMA, axes={"tensor": 2}, sequence_parallel=True),
    PartCase("Llama", LLAMA, axes={"context": 2}),
    PartCase("Llama", LLAMA, axes={"pipeline": 2}, accumulation=4),
    PartCase("Llama", LLAMA, axes={"pipeline": 2}, accumulation=4, schedule="Interleaved1F1B"),
    PartCase("Llama", LLAMA, axes={"pipeline": 2}, accumulation=4, schedule="ZBV"),
)
