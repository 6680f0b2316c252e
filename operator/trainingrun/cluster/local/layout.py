"""Where things are in a state directory. Paths only; called by everything in the local cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """
    <root>/lock                          held by the one local cluster that uses this directory
           membership.json               where the membership service is: {"host", "port"}
           cache/                        prepared data, keyed by content
           logs/<program>.log
           nodes/<node>/{lock,node.json}
           runs/<run>/{run.json,status.json,lock,deleting,events.jsonl}
                      records/<record>.json
                      pods/<pod>/{pod.json,bind.json,status.json,deleting,spec.json,termination.json}
                      logs/<pod>/agent.log …
    """

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def membership(self) -> Path:
        return self.root / "membership.json"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def program_log(self, program: str) -> Path:
        return self.root / "logs" / f"{program}.log"

    @property
    def nodes(self) -> Path:
        return self.root / "nodes"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run(self, name: str) -> Path:
        return self.runs / name

    def records(self, run: str) -> Path:
        return self.run(run) / "records"

    def pods(self, run: str) -> Path:
        return self.run(run) / "pods"

    def pod_logs(self, run: str, pod: str) -> Path:
        return self.run(run) / "logs" / pod
