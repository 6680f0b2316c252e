"""The command: `python -m tests.cluster.harness VERB …`. Talk goes to stderr, results to stdout."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import HarnessError

NODE_VERBS = {
    "partition": "pull a node's network cable",
    "heal": "plug it in again",
    "power-off": "end everything of a node at once",
    "power-on": "start it again, as after a reboot",
}
PLAIN_VERBS = {
    "build": "make everything that is kept between clusters",
    "stop-apiserver": "kill the API server",
    "start-apiserver": "start it again",
    "pause-apiserver": "freeze the API server: connections stay and nothing answers",
    "resume-apiserver": "let it go on",
    "heal-all": "take every fault back and wait for the nodes",
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.cluster.harness", description="The test cluster.")
    top.add_argument("--state", type=Path, help="state folder (default: /var/lib/trainingrun-cluster)")
    verbs = top.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start the cluster, or do nothing if it runs")
    up.add_argument("--fresh", action="store_true", help="end one that runs first")
    down = verbs.add_parser("down", help="end it and remove everything of it")
    down.add_argument("--force", action="store_true", help="also if another checkout started it")
    down.add_argument("--keep-state", action="store_true", help="keep the state folder, for its logs")
    verbs.add_parser("status", help="daemons and nodes; exit code 1 unless all is well")
    verbs.add_parser("leftovers", help="what is on this machine of the cluster")
    verbs.add_parser("logs", help="the end of every daemon's log")
    verbs.add_parser("kubeconfig", help="print the path of the kubeconfig")
    for name in ("kubectl", "helm"):
        verbs.add_parser(name, help=f"run {name} on the cluster", add_help=False, prefix_chars="\0")
    for name, text in PLAIN_VERBS.items():
        verbs.add_parser(name, help=text)
    for name, text in NODE_VERBS.items():
        verbs.add_parser(name, help=text).add_argument("node")
    kill = verbs.add_parser("kill-in-pod", help="kill processes of a pod with SIGKILL")
    kill.add_argument("namespace")
    kill.add_argument("pod")
    kill.add_argument(
        "selector", help="pid=N (inside), env=NAME=VALUE, all, or an expression over the command line"
    )
    return top


def run(cluster: Cluster, options: argparse.Namespace, rest: list[str]) -> int:
    verb: str = options.verb
    if verb == "up":
        cluster.up(fresh=options.fresh)
        print(cluster.kubeconfig)
    elif verb == "down":
        cluster.down(options.force, options.keep_state)
    elif verb == "status":
        found = cluster.status()
        print("\n".join(f"{name:32}{text}" for name, text in found.items()))
        return 0 if all(text in ("running", "ready") for text in found.values()) else 1
    elif verb == "leftovers":
        found_left = cluster.leftovers()
        print(
            "\n".join(f"{kind}: {item}" for kind, items in found_left.items() for item in items) or "nothing"
        )
    elif verb == "logs":
        print("\n\n".join(f"== {name}\n{text}" for name, text in cluster.logs().items()))
    elif verb == "kubeconfig":
        print(cluster.kubeconfig)
    elif verb in ("kubectl", "helm"):
        program = cluster.kubectl_path if verb == "kubectl" else cluster.helm_path
        os.execve(program, [verb, *rest], os.environ | {"KUBECONFIG": str(cluster.kubeconfig)})
    elif verb == "kill-in-pod":
        print(*cluster.kill_in_pod(options.namespace, options.pod, options.selector), sep="\n")
    elif verb in NODE_VERBS:
        getattr(cluster, verb.replace("-", "_"))(options.node)
    else:
        getattr(cluster, verb.replace("-", "_"))()
    return 0


def main() -> int:
    options, rest = parser().parse_known_args()
    if rest and options.verb not in ("kubectl", "helm"):
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return run(Cluster(options.state), options, rest)
    except HarnessError as error:
        print(f"cluster: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
