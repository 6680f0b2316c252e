"""TrainingRun: plan, launch and keep alive the training of language models."""

__version__ = "0.1.0"
