"""Everything that is tested on a real Kubernetes, in the order that costs least: `make test-cluster`.

The test cluster is started once and ended at the end, whatever happened. On somebody else's cluster
(TRAININGRUN_TEST_KUBECONFIG) only what needs no hand on its machines is run. What is not run, there or because the
time is over (`--minutes`), is named; it is never counted as passed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import Cluster, HarnessError
from tests.cluster.session import ENV_KEEP
from tests.second_try import Outcome, run_tests

ENV_FOREIGN = "TRAININGRUN_TEST_KUBECONFIG"
HERE, SCENARIOS = "tests/cluster", "tests/scenarios"


@dataclass(frozen=True)
class Part:
    title: str
    files: tuple[str, ...]
    anywhere: bool = False  # needs nothing but a kubeconfig of an administrator
    line: str = ""


PARTS = (
    Part(
        "the test cluster itself",
        tuple(
            f"{HERE}/test_{name}.py"
            for name in ("harness_parts", "memory", "faultproxy", "cluster_lifecycle", "harness")
        ),
    ),
    Part("the chart and its rights", (f"{HERE}/test_chart.py", f"{HERE}/test_chart_rights.py")),
    Part(
        "the scenarios",
        tuple(f"{SCENARIOS}/test_{name}.py" for name in ("line", "faults", "checkpoints", "buddies")),
        line="cluster",
    ),
    Part(
        "obstacles and bad input",
        (f"{HERE}/test_obstacles.py", f"{HERE}/test_bad_input_on_cluster.py"),
    ),
    # After the chart: they install the definition only where it is not there.
    Part("the definition on the API server", (f"{HERE}/test_crd.py",), anywhere=True),
    Part("watches that stall, break and expire", (f"{HERE}/test_adapter_watch.py",), anywhere=True),
    Part("lost pods and nodes", (f"{HERE}/test_disturbances.py",)),
    Part("a lost operator, a lost API server", (f"{HERE}/test_operator_faults.py",)),
)


def why_not(part: Part, foreign: bool) -> str | None:
    """Why this part is not run; None when it is."""
    return "needs the test cluster" if foreign and not part.anywhere else None


def run(part: Part, extra: list[str], cache: Path) -> Outcome:
    options = ["--line", part.line] if part.line else []
    return run_tests(
        part.title,
        [*part.files, *options, *extra],
        cache / part.files[0].replace("/", "."),
        env={**os.environ, ENV_KEEP: "1"},
    )


def report(outcomes: Mapping[str, Outcome], reasons: Mapping[str, str | None]) -> None:
    """One line for each part: how it ended, or why it was not run (None: it would be)."""
    for title, reason in reasons.items():
        outcome = outcomes.get(title)
        said = outcome.value if outcome else f"NOT RUN ({reason})" if reason else "to run"
        print(f"{said}: {title}", flush=True)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.suite", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the parts and what would not be run, only")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument(
        "--minutes", type=float, default=55, help="begin no part later than this (default: 55)"
    )
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    foreign = os.environ.get(ENV_FOREIGN, "")
    parts = [part for part in PARTS if why_not(part, bool(foreign)) is None]
    if options.list:
        report({}, {part.title: why_not(part, bool(foreign)) for part in PARTS})
        return 0
    if not foreign and os.geteuid() != 0:
        print(f"NOT RUN: {'; '.join(part.title for part in PARTS)}", file=sys.stderr)
        print(f"  hint: the test cluster needs root; or set {ENV_FOREIGN} to a kubeconfig", file=sys.stderr)
        return 1
    cluster = Cluster()
    try:
        if not foreign:
            began = time.monotonic()
            cluster.build()
            print(f"== built in {time.monotonic() - began:.0f} s", flush=True)
        outcomes: dict[str, Outcome] = {}
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as cache:
            for part in parts:
                if time.monotonic() - begun < 60 * options.minutes:
                    outcomes[part.title] = run(part, options.pytest, Path(cache))
    finally:
        if not foreign and not options.keep:
            cluster.down()
    report(outcomes, {part.title: why_not(part, bool(foreign)) or "no time" for part in PARTS})
    return 1 if Outcome.FAILED in outcomes.values() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as error:
        sys.exit(f"the test cluster: {error}")
