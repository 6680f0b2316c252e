"""Loads DeepSpeed for ranks on CPUs: nothing of it is ever compiled, and it says little.

DeepSpeed compiles C++ when it is first used: an all-reduce through shared memory, and its own AdamW. A pod has no
compiler, and a rank no minute to wait for one. Both have plain counterparts, gloo and torch's fused AdamW, which the
engine uses; whatever else asked to be compiled would end the rank with an error that names it. Importing this module
loads DeepSpeed; that starts no thread, so the warm fork server of a DeepSpeed run imports it.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any, NoReturn

os.environ["DS_ACCELERATOR"] = "cpu"  # else it looks for devices, and takes what it finds

import deepspeed
import deepspeed.ops
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401 - else imported in the first step
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import logger

from trainer.errors import TrainerError

__all__ = ["BF16_Optimizer", "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "deepspeed"]


class NotCompiled(TrainerError):
    """A part of DeepSpeed that would have to be compiled first."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"DeepSpeed asked to compile {name}, and nothing is compiled in a run. Fix: use the settings that this "
            "version of the trainer makes, with the version of DeepSpeed in its constraints"
        )


def _refuse(builder: Any, verbose: bool = True) -> NoReturn:
    raise NotCompiled(builder.name)


OpBuilder.jit_load = _refuse
# Otherwise it runs compilers to find out what it could compile. Nothing: then it reduces by gloo.
deepspeed.ops.__compatible_ops__ = {}
logger.setLevel(logging.WARNING)
bf16_optimizer.see_memory_usage = lambda *_, **__: None
# It calls collectives by names that torch gives up, some of them hundreds of times in a step.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
