"""Tokens a second of the trainer, of transformers' Trainer and of a plain loop, in turns on one machine."""
