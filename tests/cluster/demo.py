"""`make cluster-demo`: a real Kubernetes of three nodes, our chart, one run, a node lost in the middle of it.

Tells what happens as it happens, with the commands that a user would type and their output. The cluster and
everything on it is removed at the end (`--keep`: left up, with the command to reach it).
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness import Cluster
from tests.cluster.installation import NAMESPACE, Installation

from trainingrun.api.constants import GROUP, PLURAL, VERSION
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.ports import Unavailable

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [ROOT / "examples" / name for name in ("cluster-claim.yaml", "cluster-pretrain.yaml")]
HOME = "demo"  # namespace of the run
FAULT_AT = 0.4  # of the run's steps
PATIENCE_SECONDS = 900


class Demo:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = Api.connect()
        claim, run = (yaml.safe_load(path.read_text()) for path in EXAMPLES)
        self.claim, self.name = claim["metadata"]["name"], run["metadata"]["name"]
        self.steps = int(run["spec"]["training"]["duration"]["steps"])
        self.path = f"/apis/{GROUP}/{VERSION}/namespaces/{HOME}/{PLURAL}/{self.name}"

    def show(self, *words: str) -> None:
        """Run a command as a user would, and show it with its output."""
        print(f"\n$ {shlex.join(words)}", flush=True)
        kubectl, helm = str(self.cluster.kubectl_path), str(self.cluster.helm_path)
        program = {
            "kubectl": [kubectl],
            "helm": [helm],
            "trainingrun": [sys.executable, "-m", "trainingrun.cli"],
        }
        subprocess.run([*program[words[0]], *words[1:]], check=True, cwd=ROOT)

    def status(self) -> Mapping[str, Any]:
        try:
            return (self.api.get(self.path) or {}).get("status") or {}
        except Unavailable:
            return {}

    def follow(self, until: Any, what: str) -> Mapping[str, Any]:
        """Print a line whenever the state changes, until `until(status)`."""
        deadline, said = time.monotonic() + PATIENCE_SECONDS, ""
        while True:
            status = self.status()
            ready = condition(status, "Ready")
            progress, members = status.get("progress") or {}, status.get("membership") or {}
            line = f"{ready.get('reason', 'Pending')}: {ready.get('message', '')}"
            if line != said:
                said = line
                epoch, step = members.get("epoch", 0), progress.get("step", 0)
                print(
                    f"  {time.strftime('%H:%M:%S')}  epoch {epoch}  step {step}/{self.steps}  {line}",
                    flush=True,
                )
            if until(status):
                return status
            if is_true(status, "Failed") or time.monotonic() > deadline:
                self.show("kubectl", "-n", HOME, "describe", "trun", self.name)
                raise SystemExit(f"the demo failed: {what}")
            time.sleep(0.5)

    def run(self) -> None:
        self.show("kubectl", "get", "nodes")
        Installation(self.cluster, self.api).install()
        print(
            f"\n$ helm upgrade --install trainingrun helm/trainingrun -n {NAMESPACE} --create-namespace --wait …"
        )
        self.show("helm", "list", "-n", NAMESPACE)
        self.make_home()
        files = [word for path in EXAMPLES for word in ("-f", str(path.relative_to(ROOT)))]
        self.show("kubectl", "-n", HOME, "apply", *files)
        threshold = int(self.steps * FAULT_AT)
        self.follow(lambda now: step_of(now) >= threshold, f"step {threshold}")
        self.show("kubectl", "-n", HOME, "get", "trun,pods", "-o", "wide")
        victim = self.node_to_lose()
        before = step_of(self.status())
        print(f"\n*** the power of {victim} fails at step {before}: kubelet, containerd and all its pods ***")
        self.cluster.power_off(victim)
        self.follow(lambda now: epoch_of(now) > 2 and is_true(now, "Ready"), "a replacement")
        self.show("kubectl", "get", "nodes")
        self.follow(lambda now: is_true(now, "Complete"), "the end of the run")
        self.show("kubectl", "-n", HOME, "get", "trun,pods", "-o", "wide")
        self.show("trainingrun", "describe", self.name, "-n", HOME)
        self.show("kubectl", "-n", HOME, "get", "events", "--sort-by=.metadata.creationTimestamp",
                  f"--field-selector=involvedObject.name={self.name}")  # fmt: skip
        self.exported()

    def make_home(self) -> None:
        """A namespace of the restricted level, and a volume for the claim (this cluster has no storage class)."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.api.create("/api/v1/namespaces", {"metadata": {"name": HOME, "labels": labels}})
        volume = {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(self.cluster.shared_dir)},
            "claimRef": {"namespace": HOME, "name": self.claim},
        }
        self.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"{HOME}-volume"}, "spec": volume})

    def node_to_lose(self) -> str:
        """A node with a worker; one without the operator if there is one, so that the story stays short."""
        operator = {
            pod["spec"].get("nodeName") for pod in self.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods")
        }
        workers = [pod["spec"].get("nodeName") for pod in self.api.list(f"/api/v1/namespaces/{HOME}/pods")]
        return str(sorted(workers, key=lambda node: (node in operator, node))[0])

    def exported(self) -> None:
        export = (self.status().get("output") or {}).get("export", "")
        print(f"\nThe model is at {export}:")
        folder = self.cluster.shared_dir / export.removeprefix(f"pvc://{self.claim}/")
        for file in sorted(folder.iterdir()):
            print(f"  {file.stat().st_size:>10,}  {file.name}")


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = [item for item in status.get("conditions") or [] if item["type"] == kind]
    return found[0] if found else {}


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    return condition(status, kind).get("status") == "True"


def step_of(status: Mapping[str, Any]) -> int:
    return int((status.get("progress") or {}).get("step") or 0)


def epoch_of(status: Mapping[str, Any]) -> int:
    return int((status.get("membership") or {}).get("epoch") or 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    options = parser.parse_args()
    cluster = Cluster()
    cluster.up()
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    try:
        Demo(cluster).run()
    finally:
        if not options.keep:
            cluster.down()
    if options.keep:
        cluster.heal_all()
        print(f"\nThe cluster is up: export KUBECONFIG={cluster.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
