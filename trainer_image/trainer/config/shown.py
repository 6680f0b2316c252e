"""What an epoch computes with, for the log and for people: every choice that was left to us, as it was made."""

from __future__ import annotations

from typing import Any

from trainer.config.run import TrainerConfig
from trainingrun.protocol.records import Rung


def numerics(config: TrainerConfig, rung: Rung) -> dict[str, Any]:
    training = config.training
    return {
        "precision": training.precision,
        "optimizer": training.optimizer.name,
        "schedule": training.schedule.name,
        "attention": training.overrides.attention,
        "activationCheckpointing": rung.activation_checkpointing,
        "compile": training.overrides.compile,
        "zLoss": training.overrides.z_loss,
        "emaDecay": training.overrides.ema_decay,
    }
