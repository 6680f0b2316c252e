"""The real agent with small parts: `python -c "from tests.trainer.fake_agent import run; run()"`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.agent.main import main
from trainer.agent.parts import Parts, real_parts
from trainer.errors import ConfigError


def prepare(spec: dict[str, Any], cache_dir: Path, say: Callable[[str], None]) -> None:
    say("tokenising")
    print("a library talks on standard output")
    time.sleep(spec["fake"].get("prepareSeconds", 0.0))
    if spec["fake"].get("badData"):
        raise ConfigError(
            "spec.data.sources[0].uri", "file:///nowhere", "there is no such file", "name one that is"
        )


def check(spec: dict[str, Any]) -> None:
    if spec["fake"]["steps"] < 1:
        raise ConfigError("spec.fake.steps", spec["fake"]["steps"], "not positive", "at least 1")


def run() -> None:
    real = real_parts()
    os._exit(main(Parts("tests.trainer.fake_rank", "tests.trainer.fake_agent", check, real.claim, real.look)))
