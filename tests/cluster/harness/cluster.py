"""The test cluster as an object: what tests and the command use.

`up` builds what is missing, cleans up after a dead predecessor, and returns when all nodes are ready. Everything
else acts on the cluster that runs. An object has no state of its own: two of them with the same state folder are
the same cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.harness import (
    cleanup,
    control_plane,
    environments,
    images,
    kubeconfigs,
    layout,
    lifecycle,
    lock,
    network,
    node,
    packages,
    pods,
    programs,
)
from tests.cluster.harness.api import Api, wait_until
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.faultproxy import FaultProxy
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.processes import Daemons
from tools import cache
from tools.setup_tools import TOOLS, tool


class Cluster:
    """One test cluster. `state` is its folder (default: $TRAININGRUN_CLUSTER_STATE or /var/lib/trainingrun-cluster)."""

    def __init__(self, state: Path | None = None) -> None:
        self.layout = Layout.chosen(state)
        self.api = Api(self.layout)
        self._daemons = Daemons(self.layout.pids, self.layout.logs)

    @property
    def api_url(self) -> str:
        """The API server's address on the host."""
        return self.layout.api_url

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the API server's."""
        return self.layout.pki / "ca.crt"

    @property
    def shared_dir(self) -> Path:
        """Seen by every node under this path: for static hostPath volumes. Writable by every user."""
        return self.layout.shared

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.layout.nodes)

    @property
    def kubectl_path(self) -> Path:
        return tool("kubectl")

    @property
    def helm_path(self) -> Path:
        return tool("helm")

    @property
    def is_up(self) -> bool:
        """Whether it runs: this checkout's, in this state folder, started to the end."""
        holder = lock.holder()
        ours = holder is not None and holder.is_ours and holder.state == str(self.layout.state)
        return ours and self.layout.ready.exists()

    # Building, starting and ending

    def build(self) -> None:
        """Makes everything that is kept between clusters. Minutes the first time, a second afterwards."""
        packages.install()
        with cache.builder():
            programs.build()
            images.archive()
            environments.build()
        for name in TOOLS:
            tool(name)

    def up(self, fresh: bool = False) -> None:
        """Starts the cluster. One that already runs for this checkout stays, unless `fresh`.

        A running one only gets what containers see mounted brought up to date (for containers to come). Raises
        HarnessError when something does not start (it then stays for `logs`), or when another checkout has the
        machine's cluster.
        """
        packages.check_root()
        self.build()
        with lock.command():
            if self.is_up and not fresh and self.api.ready():
                for each in self.layout.nodes:
                    node.refresh(each, self._daemons, environments.mounts())
                lifecycle.wait_nodes_ready(self.layout, self._daemons)
                cache.say("it runs already")
                return
            holder = lock.holder()
            if holder and not (holder.is_ours and holder.state == str(self.layout.state)):
                raise lock.refusal(holder)
            before = lock.last_holder()
            cleanup.check_folder(self.layout)
            for old in {self.layout.state, Path(before.state) if before else self.layout.state}:
                cleanup.remove(Layout(old))
            lifecycle.start(
                self.layout, lifecycle.Parts(programs.build(), images.archive(), environments.mounts())
            )

    def down(self, force: bool = False, keep_state: bool = False) -> None:
        """Ends it and removes all of it. Raises HarnessError when it is another checkout's and not `force`."""
        packages.check_root()
        with lock.command():
            holder = lock.holder()
            if holder and not holder.is_ours and not force:
                raise lock.refusal(holder)
            for state in {self.layout.state, Path(holder.state) if holder else self.layout.state}:
                cleanup.remove(Layout(state), keep_state)
            if left := self.leftovers():
                raise HarnessError(f"these could not be removed: {left}")

    def leftovers(self) -> dict[str, list[str]]:
        """What is on the machine of this cluster, by kind; empty when it is down."""
        return cleanup.leftovers(self.layout)

    def status(self) -> dict[str, str]:
        """Each daemon, and whether it runs; each node, and whether it is ready."""
        found = {daemon.name: "running" if daemon.alive else "gone" for daemon in self._daemons.all()}
        for each in self.layout.nodes:
            try:
                found[each.name] = "ready" if node.is_ready(self.layout, each) else "not ready"
            except HarnessError as error:
                found[each.name] = f"unknown: {error}"
        return found

    def logs(self, size: int = 1500) -> dict[str, str]:
        """The end of every daemon's log, in characters."""
        names = sorted(path.stem for path in self.layout.logs.glob("*.log"))
        return {name: self._daemons.log_end(name, size) for name in names}

    # Using it

    def command(self, *words: str, timeout_seconds: float = 60.0, stdin: str | None = None) -> str:
        """Runs a program with the cluster's kubeconfig; gives its stdout. Raises HarnessError with its stderr."""
        try:
            done = subprocess.run(
                list(words),
                env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
                input=stdin or "",
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"{' '.join(words[:6])} did not end within {timeout_seconds:.0f} s") from error
        if done.returncode:
            raise HarnessError(f"{' '.join(words[:6])}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def kubectl(self, *words: str, timeout_seconds: float = 60.0, stdin: str | None = None) -> str:
        return self.command(str(self.kubectl_path), *words, timeout_seconds=timeout_seconds, stdin=stdin)

    def helm(self, *words: str, timeout_seconds: float = 120.0) -> str:
        return self.command(str(self.helm_path), *words, timeout_seconds=timeout_seconds)

    def exec_host(self, where: str, *words: str, timeout_seconds: float = 60.0) -> str:
        """Runs a program of the host in the network of a node, or of "control-plane"."""
        namespace = layout.CONTROL_PLANE if where == "control-plane" else self._node(where).namespace
        return self.command(
            "nsenter", f"--net={network.path(namespace)}", *words, timeout_seconds=timeout_seconds
        )

    def pods_of_node(self, name: str) -> list[dict[str, Any]]:
        self._node(name)
        pods_there: list[dict[str, Any]] = self.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")[
            "items"
        ]
        return pods_there

    def fault_proxy(self, in_cluster: bool = False, as_admin: bool = False) -> FaultProxy:
        """A proxy in front of the API server (a context manager), with a certificate that `ca` verifies.

        On the host it listens on 127.0.0.1; `in_cluster`, on an address that pods and nodes reach. `as_admin`
        passes every request on as the administrator's; otherwise the client's own token counts.
        """
        pki = self.layout.pki
        return FaultProxy(
            self.api_url,
            ca=self.ca,
            identity=(pki / "admin.crt", pki / "admin.key") if as_admin else None,
            tls=(pki / "apiserver.crt", pki / "apiserver.key"),
            address=layout.CONTROL_ADDRESS if in_cluster else "127.0.0.1",
            namespace=network.path(layout.CONTROL_PLANE) if in_cluster else None,
        )

    def kubeconfig_for(self, url: str, token: str = "") -> Path:
        """A kubeconfig for the API server under another address, such as a fault proxy's, with a bearer token."""
        path = self.layout.state / f"kubeconfig-{cache.key(url, token)}"
        kubeconfigs.write(path, url, self.ca, {"token": token} if token else {})
        return path

    def token(self, namespace: str, account: str, audience: str = "", seconds: int = 3600) -> str:
        """A token of a service account, as a pod of it would have. No audience means the API server."""
        spec = {"expirationSeconds": seconds, **({"audiences": [audience]} if audience else {})}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        made = self.api.request("POST", path, {"spec": spec})
        token: str = made["status"]["token"]
        return token

    def processes(self, namespace: str, pod: str) -> list[pods.PodProcess]:
        """The processes in the pod's containers, by host pid, without the pause process."""
        return pods.find(self.api, namespace, pod)

    def wait_until(self, what: str, condition: Callable[[], object], timeout_seconds: float) -> None:
        wait_until(what, condition, timeout_seconds)

    # Faults

    def partition(self, name: str) -> None:
        """Pulls the node's cable."""
        network.set_cable(self._node(name), connected=False)

    def heal(self, name: str) -> None:
        network.set_cable(self._node(name), connected=True)

    def power_off(self, name: str) -> None:
        """Ends everything of the node at once, as when its power fails."""
        node.power_off(self._node(name), self._daemons)

    def power_on(self, name: str) -> None:
        """Starts it again, as after a reboot. Does not wait until it is ready."""
        node.power_on(self._node(name), self.layout.pki, self._daemons, programs.build())

    def pause_apiserver(self) -> None:
        """Freezes the API server: connections stay open and nothing answers."""
        self._daemons.send_signal(control_plane.API_SERVER, signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        self._daemons.send_signal(control_plane.API_SERVER, signal.SIGCONT)

    def stop_apiserver(self) -> None:
        """Kills the API server: connections break and new ones are refused."""
        self._daemons.stop([control_plane.API_SERVER], signal.SIGKILL)

    def start_apiserver(self) -> None:
        """Starts it again and waits until it is ready."""
        old = self._daemons.get(control_plane.API_SERVER)
        if old and old.alive:
            raise HarnessError("the API server runs already")
        control_plane.start(self.layout, self._daemons, programs.build(), control_plane.API_SERVER)
        control_plane.wait_ready(self.layout, self._daemons)

    def restart_controller_manager(self) -> None:
        """It then looks at everything anew; after an outage of the API server it would do so only a minute later."""
        self._daemons.stop([control_plane.CONTROLLER_MANAGER], signal.SIGKILL)
        control_plane.start(self.layout, self._daemons, programs.build(), control_plane.CONTROLLER_MANAGER)

    def kill_in_pod(
        self, namespace: str, pod: str, selector: str, number: signal.Signals = signal.SIGKILL
    ) -> list[int]:
        """Signals the pod's processes that the selector matches (see pods.select); gives their host pids.

        Raises HarnessError when none does.
        """
        chosen = pods.select(self.processes(namespace, pod), selector)
        for each in chosen:
            os.kill(each.pid, number)
        return [each.pid for each in chosen]

    def heal_all(self) -> None:
        """Takes every fault back: cables, nodes, API server; returns when all nodes are ready."""
        server = self._daemons.get(control_plane.API_SERVER)
        if server and server.alive:
            self.resume_apiserver()
        else:
            self.start_apiserver()
        for each in self.layout.nodes:
            if not network.is_plugged(each):
                self.power_on(each.name)
            elif not network.cable_is_up(each):
                self.heal(each.name)
        lifecycle.wait_nodes_ready(self.layout, self._daemons)

    def _node(self, name: str) -> layout.Node:
        return node.check_name(self.layout, name)
