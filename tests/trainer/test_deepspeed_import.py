"""DeepSpeed is loaded where a run of its engine needs it, before ranks are forked, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.agent.parts import real_parts

_COUNT = "len(list(__import__('pathlib').Path('/proc/self/task').iterdir()))"


def after_importing(module: str, expression: str) -> str:
    """What the expression says in a new process that begins as the fork server does."""
    code = f"import {module}, sys; print({expression})"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines()[-1]


def test_ranks_of_the_engine_native_do_not_load_it() -> None:
    assert after_importing("trainer.rank", "'deepspeed' in sys.modules") == "False"


def test_the_agent_and_its_checks_do_not_load_it_either() -> None:
    assert after_importing("trainer.agent.main", "'deepspeed' in sys.modules") == "False"


def test_the_fork_server_of_a_deepspeed_run_has_loaded_it_and_started_no_thread() -> None:
    """A thread would not exist in the ranks."""
    module = real_parts().rank_module_for({"parallelism": {"engine": "DeepSpeed"}})
    assert after_importing(module, f"('deepspeed' in sys.modules, {_COUNT})") == "(True, 1)"


@pytest.mark.parametrize("spec", [{}, {"parallelism": {"engine": "Native"}}, {"parallelism": None}])
def test_any_other_run_has_the_rank_module_of_the_engine_native(spec: dict[str, object]) -> None:
    assert real_parts().rank_module_for(spec) == "trainer.rank"
