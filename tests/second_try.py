"""Failed tests get a second try, because the machines that run them are shared; it is never kept quiet.

`python -m tests.second_try [arguments of pytest]` for tests that race whole processes against the clock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Outcome(Enum):
    PASSED = "passed"
    FLAKY = "FLAKY: passed only at the second try"
    FAILED = "FAILED"


def run_tests(
    title: str, arguments: Sequence[str], cache: Path, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run pytest with `arguments`, what failed once more; `cache` keeps what failed, one folder for each title."""
    began = time.monotonic()
    print(f"== {title}", flush=True)
    command = [sys.executable, "-m", "pytest", *arguments, "--durations=5", "-o", f"cache_dir={cache}"]

    def passes(*more: str) -> bool:
        return subprocess.run([*command, *more], cwd=ROOT, env=env, check=False).returncode == 0

    if passes():
        outcome = Outcome.PASSED
    else:
        outcome = Outcome.FLAKY if passes("--last-failed") else Outcome.FAILED
    print(f"== {title}: {outcome.value}, {time.monotonic() - began:.0f} s", flush=True)
    return outcome


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as cache:
        outcome = run_tests(" ".join(arguments), arguments, Path(cache))
    return 1 if outcome is Outcome.FAILED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
