"""The rank module of DeepSpeed runs: `trainer.rank`, with DeepSpeed loaded before the first rank is forked."""

from trainer.deepspeed_engine import engine as _engine  # noqa: F401 - what the ranks would import otherwise
from trainer.rank import main

__all__ = ["main"]
