"""The test side's port: what a scenario does to a line of programs, and what it may look at.

Scenarios are written against `Line` and know nothing of processes or pods, so that they run unchanged on a
cluster. `LocalLine` is the line on this machine. Waiting is by condition, never by time; what does not come
true fails with the end of every log.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeVar

from trainingrun.api.constants import Reason
from trainingrun.cluster.local.cluster import CONTROLLER, MEMBERSHIP, LocalCluster
from trainingrun.cluster.local.container import tail
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.ports import EventRecord, Node, Pod
from trainingrun.protocol.messages import RunView
from trainingrun.protocol.records import Epoch, Revision

T = TypeVar("T")
LOOK_SECONDS = 0.05
NEVER_BEGINS = (Reason.INVALID_SPEC, Reason.PLAN_INFEASIBLE)
ENV_TRAINER_PYTHON = "TRAININGRUN_TRAINER_PYTHON"


@dataclass(frozen=True)
class Moment:
    """Everything that can be seen of the run at one time."""

    view: RunView | None  # None: membership cannot be asked
    status: Mapping[str, Any]
    pods: Sequence[Pod]
    epochs: Sequence[Epoch]

    @property
    def step(self) -> int:
        """Newest step that membership knows of; 0 when there is none, or membership is away."""
        return self.view.progress.step if self.view is not None and self.view.progress is not None else 0

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0

    @property
    def members(self) -> int:
        """Nodes of the newest epoch."""
        return len(self.epochs[-1].members) if self.epochs else 0

    def is_true(self, condition: str) -> bool:
        conditions = self.status.get("conditions") or []
        return any(item["type"] == condition and item["status"] == "True" for item in conditions)

    @property
    def over(self) -> bool:
        return self.is_true("Complete") or self.hopeless

    @property
    def hopeless(self) -> bool:
        """It failed, or cannot begin without another manifest."""
        stalled = [item for item in self.status.get("conditions") or [] if item["type"] == "Stalled"]
        return self.is_true("Failed") or any(item["reason"] in NEVER_BEGINS for item in stalled)


class Line(Protocol):
    """One run, its nodes, membership and controller. All of them run when the context is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def apply(self, manifest: Mapping[str, Any]) -> str:
        """Create or change the run; its uid."""

    # what can be seen

    def moment(self) -> Moment: ...

    def revisions(self) -> Sequence[Revision]: ...

    def events(self) -> Sequence[EventRecord]: ...

    def nodes(self) -> Sequence[Node]: ...

    def node_of(self, slot: int) -> str: ...

    def logs(self) -> str:
        """The end of every program's and pod's log, for the message of a test that failed."""

    def files(self, pattern: str) -> Sequence[Path]:
        """Files of that name pattern that the ranks of all pods logged, those of pods that are gone included."""

    def cache_dir(self) -> Path:
        """Where the nodes keep prepared data."""

    def leaks(self) -> Sequence[str]:
        """What is left that should not be; to be asked after the context is left."""

    # waiting

    def wait_for(
        self, condition: Callable[[Moment], T | None], what: str, timeout_seconds: float = 120.0
    ) -> T:
        """The first true value of `condition`. Fails with `what` and the logs when there is none in time."""

    def wait_for_step(self, step: int, timeout_seconds: float = 120.0) -> Moment:
        """Until membership knows of that step or a later one."""

    def wait_for_end(self, timeout_seconds: float = 240.0) -> Moment:
        """Until the run is Complete; fails when it is Failed."""

    # faults

    def kill_rank(self, slot: int, local_rank: int) -> None: ...

    def kill_agent(self, slot: int) -> None: ...

    def kill_node(self, node: str) -> None:
        """The node and everything on it, at once, as a power cut."""

    def start_node(self, node: str) -> None: ...

    def stop_membership(self) -> None:
        """SIGSTOP: it is there, but does not answer."""

    def continue_membership(self) -> None: ...

    def kill_membership(self) -> None: ...

    def start_membership(self) -> None: ...

    def kill_controller(self) -> None: ...

    def start_controller(self) -> None: ...


class LocalLine:
    """The line as processes on this machine, in a state directory of its own that is removed at the end.

    `state`: use this directory and keep it. `settings` and `membership_settings` are of the local cluster
    and of the membership service.
    """

    def __init__(
        self,
        nodes: int = 2,
        settings: LocalSettings | None = None,
        membership_settings: Mapping[str, float] | None = None,
        state: Path | None = None,
    ) -> None:
        trainer_python = os.environ.get(ENV_TRAINER_PYTHON, "")
        if not trainer_python:
            raise RuntimeError(f"{ENV_TRAINER_PYTHON} is not set; run the scenarios by `make test-scenarios`")
        self._kept = state is not None
        self.state = state or Path(tempfile.mkdtemp(prefix="trainingrun-scenario-"))
        self._nodes = [f"node-{number}" for number in range(nodes)]
        self.cluster = LocalCluster(
            self.state / "state", trainer_python, sys.executable, settings, membership_settings
        )
        self._run = ""
        self._uid = ""

    def __enter__(self) -> Self:
        try:
            self.cluster.start_membership()
            self.cluster.start_controller()
            for node in self._nodes:
                self.cluster.start_node(node)
        except BaseException:
            self.cluster.teardown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.teardown()
        self._left = self.cluster.leaks()
        if not self._kept and kind is None:  # what a failed test leaves is for people to read
            shutil.rmtree(self.state, ignore_errors=True)

    def apply(self, manifest: Mapping[str, Any]) -> str:
        self._run = manifest["metadata"]["name"]
        self._uid = self.cluster.apply(manifest)
        return self._uid

    def moment(self) -> Moment:
        port = self.cluster.port
        run = port.store.run(self._run)
        return Moment(
            view=port.membership(self._uid),
            status=run.status if run is not None else {},
            pods=port.pods(self._run),
            epochs=port.epochs(self._uid),
        )

    def revisions(self) -> Sequence[Revision]:
        return self.cluster.port.revisions(self._uid)

    def events(self) -> Sequence[EventRecord]:
        return self.cluster.port.store.events(self._run)

    def nodes(self) -> Sequence[Node]:
        return self.cluster.port.nodes()

    def node_of(self, slot: int) -> str:
        node = self.cluster.node_of(self._run, slot)
        if node is None:
            raise LookupError(f"no node holds slot {slot}")
        return node

    def logs(self) -> str:
        root = self.cluster.root
        files = sorted([*root.glob("logs/*.log"), *root.glob("runs/*/logs/*/*.log")])
        return "\n".join(f"--- {file.relative_to(root)}\n{tail(file, 3000)}" for file in files)

    def files(self, pattern: str) -> Sequence[Path]:
        return sorted(self.cluster.root.glob(f"runs/{self._run}/logs/*/{pattern}"))

    def cache_dir(self) -> Path:
        return self.cluster.layout.cache

    def leaks(self) -> Sequence[str]:
        return self._left

    def wait_for(
        self, condition: Callable[[Moment], T | None], what: str, timeout_seconds: float = 120.0
    ) -> T:
        deadline = time.monotonic() + timeout_seconds
        while True:
            moment = self.moment()
            if value := condition(moment):
                return value
            if time.monotonic() > deadline:
                self._fail(f"not within {timeout_seconds:g} s: {what}", moment)
            time.sleep(LOOK_SECONDS)

    def wait_for_step(self, step: int, timeout_seconds: float = 120.0) -> Moment:
        def reached(moment: Moment) -> Moment | None:
            if moment.hopeless:
                self._fail(f"the run failed before step {step}", moment)
            return moment if moment.step >= step else None

        return self.wait_for(reached, f"step {step}", timeout_seconds)

    def wait_for_end(self, timeout_seconds: float = 240.0) -> Moment:
        found = self.wait_for(lambda now: now if now.over else None, "the end of the run", timeout_seconds)
        if not found.is_true("Complete"):
            self._fail("the run failed", found)
        return found

    def _fail(self, message: str, moment: Moment) -> NoReturn:
        events = "\n".join(f"{event.at:.1f} {event.reason}: {event.message}" for event in self.events())
        raise AssertionError(f"{message}\nseen: {moment}\nevents:\n{events}\n{self.logs()}")

    def kill_rank(self, slot: int, local_rank: int) -> None:
        self.cluster.kill_rank(self._run, slot, local_rank)

    def kill_agent(self, slot: int) -> None:
        self.cluster.kill_agent(self._run, slot)

    def kill_node(self, node: str) -> None:
        self.cluster.kill_node(node)

    def start_node(self, node: str) -> None:
        self.cluster.start_node(node)

    def stop_membership(self) -> None:
        self.cluster.pause(MEMBERSHIP)

    def continue_membership(self) -> None:
        self.cluster.resume(MEMBERSHIP)

    def kill_membership(self) -> None:
        self.cluster.kill(MEMBERSHIP)

    def start_membership(self) -> None:
        self.cluster.start_membership()

    def kill_controller(self) -> None:
        self.cluster.kill(CONTROLLER)

    def start_controller(self) -> None:
        self.cluster.start_controller()


_SMALL = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "scenario"},
    "spec": {
        "task": "pretrain",
        "model": {
            "init": "Config",
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "tie_word_embeddings": False,
            },
            "tokenizer": {"train": {"vocabularySize": 384}},
        },
        "data": {"seed": 17, "sources": [], "packing": "Concatenate"},
        "training": {
            "duration": {"steps": 60},
            "globalBatch": {"sequences": 8},
            "sequenceLength": 32,
            "precision": "FP32",
            "optimizer": {"name": "AdamW", "learningRate": 0.002, "maxGradNorm": 1.0},
            # Constant: a run of fewer steps then follows a longer one step by step.
            "schedule": {"name": "Cosine", "warmupPermille": 0, "minLearningRatePermille": 1000},
            "seed": 17,
        },
        "scale": {"minNodes": 1, "maxNodes": 2, "growHoldSeconds": 1},
        "resources": {"perNode": {"cpu": "1", "memory": "4Gi"}, "processesPerNode": 2},
        "checkpoint": {"location": {"uri": ""}, "durable": {"intervalSteps": 25, "keepLast": 3}},
        "output": {"format": "Safetensors", "uri": ""},
    },
}


def small_manifest(folder: Path, name: str = "scenario", **changes: Any) -> dict[str, Any]:
    """A run that trains in seconds: a tiny Llama on text that is written to `folder`.

    `changes` replace values by their path below spec, `__` for a dot: `training__duration={"steps": 20}`.
    """
    manifest: dict[str, Any] = copy.deepcopy(_SMALL)
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    text = folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    # Real text: on a made-up one the loss soon stands on a plateau, where rounding grows without bound.
    for source in ("argparse.py", "dataclasses.py", "subprocess.py", "typing.py"):
        shutil.copy(Path(sysconfig.get_path("stdlib")) / source, text / source)
    spec["data"]["sources"] = [{"name": "text", "uri": f"file://{text}", "format": "Text"}]
    spec["checkpoint"]["location"]["uri"] = f"file://{folder / 'checkpoints' / name}"
    spec["output"]["uri"] = f"file://{folder / 'models' / name}"
    for path, value in changes.items():
        *parents, last = path.split("__")
        holder = spec
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = value
    return manifest
