"""DeepSpeed's configuration, made from the run: every value that matters is given, none is left to "auto".

Two defaults of DeepSpeed change numbers when nobody sets them, so they are always set: gradients are clipped to 1.0,
and averaged over ranks, which weighs the ranks alike and not the tokens. Pure; called by the engine.
"""

from __future__ import annotations

from typing import Any

from trainer.config import TrainerConfig
from trainingrun.protocol.records import Rung

NEVER = 0.0  # for gradient_clipping: gradients are not clipped
BUCKET_ELEMENTS = 8 << 20  # of one reduction or gathering; bounds the extra memory
_EVERYTHING = 10**12  # elements: one flat buffer for each group of parameters
_KEPT_ROWS = 10  # ZeRO 3: parameters of up to this many hidden vectors (norms, biases) are not cut


def deepspeed_settings(config: TrainerConfig, rung: Rung) -> dict[str, Any]:
    """What `deepspeed.initialize` takes as its configuration."""
    training = config.training
    optimizer, mixed = training.optimizer, training.precision == "BF16"
    return {
        "train_batch_size": rung.data * rung.micro_batch * rung.accumulation,
        "train_micro_batch_size_per_gpu": rung.micro_batch,
        "gradient_accumulation_steps": rung.accumulation,
        "gradient_clipping": optimizer.max_grad_norm or NEVER,
        "gradient_allreduce_op": "mean" if averages(rung) else "sum",
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimizer.learning_rate,
                "betas": list(optimizer.betas),
                "eps": optimizer.epsilon,
                "weight_decay": optimizer.weight_decay,
                "torch_adam": True,  # DeepSpeed's own have to be compiled
                "fused": True,
            },
        },
        "zero_optimization": _zero(config, rung),
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": mixed},
        "fp16": {"enabled": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "wall_clock_breakdown": False,
        "steps_per_print": 10**9,
    }


def averages(rung: Rung) -> bool:
    """Whether DeepSpeed divides gradients by the number of ranks: the one thing that ZeRO 3 cannot leave out."""
    return rung.zero_stage == 3


def _zero(config: TrainerConfig, rung: Rung) -> dict[str, Any]:
    host = {"device": "cpu", "pin_memory": False}
    offload = config.engine.offload
    zero: dict[str, Any] = {
        "stage": rung.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "allgather_bucket_size": BUCKET_ELEMENTS,
        "round_robin_gradients": False,
    }
    if offload != "None":
        zero["offload_optimizer"] = host
    if rung.zero_stage == 3:
        zero |= {
            "sub_group_size": _EVERYTHING,
            "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": BUCKET_ELEMENTS,
            "stage3_max_reuse_distance": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": _KEPT_ROWS * config.model.hidden_size,
        }
        if offload == "OptimizerAndParameters":
            zero["offload_param"] = host
    return zero
