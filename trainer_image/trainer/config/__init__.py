"""What a run's resolved specification asks of the trainer, checked; readable without torch.

`read_config(spec)` turns the API form (camelCase keys, defaults filled in) into frozen dataclasses, and
`check_rung(config, rung)` says whether a plan's rung can train it. Both raise `ConfigError` with field,
value and fix. They are called by every rank before anything else, and must never touch a device, a file or
the network. One module for each block of the specification.
"""

from trainer.config.checkpoint import CheckpointConfig
from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig, vocabulary_size
from trainer.config.run import TrainerConfig, read_config
from trainer.config.rung import check_rung
from trainer.config.shown import numerics
from trainer.config.training import OptimizerConfig, ScheduleConfig, TrainingConfig

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainerConfig",
    "TrainingConfig",
    "check_rung",
    "numerics",
    "read_config",
    "vocabulary_size",
]
