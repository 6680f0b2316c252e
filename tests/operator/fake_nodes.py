"""What happens to nodes and pods in the world of `fake_port`: kubelets, faults, and the end of the work."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

from trainingrun.ports import Node, Pod, PodPhase
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Epoch, EpochSummary


class Nodes(ABC):
    at: float
    pod_list: dict[str, Pod]
    node_map: dict[str, Node]
    epoch_list: list[Epoch]
    silent_nodes: set[str]  # membership does not hear them
    stuck: set[str]  # names of pods that stay Terminating

    @abstractmethod
    def _summary(self, epoch: Epoch, step_seconds: float = 0.1) -> EpochSummary: ...

    def change(self, name: str, **fields: Any) -> None:
        self.pod_list[name] = dataclasses.replace(self.pod_list[name], **fields)

    def kubelet(self) -> None:
        """Starts pending pods on free nodes; ends what is to be deleted, except on dead nodes."""
        for name, pod in list(self.pod_list.items()):
            on_dead = pod.node in self.node_map and not self.node_map[pod.node].ready
            if pod.terminating and not on_dead and name not in self.stuck:
                del self.pod_list[name]
        busy = {
            pod.node
            for pod in self.pod_list.values()
            if pod.phase is PodPhase.RUNNING and not pod.terminating
        }
        free = [node.name for node in self.node_map.values() if node.ready and node.name not in busy]
        for name, pod in sorted(self.pod_list.items()):
            if pod.phase is PodPhase.PENDING and not pod.terminating and free:
                self.change(name, phase=PodPhase.RUNNING, node=free.pop(0), ready=True)

    def lose_node(self, name: str) -> None:
        self.node_map[name] = dataclasses.replace(self.node_map[name], ready=False)
        for pod in list(self.pod_list.values()):
            if pod.node == name and pod.phase is PodPhase.RUNNING:
                self.change(pod.name, phase=PodPhase.FAILED, reason="NodeLost", ready=False)

    def node_not_ready(self, name: str, *, silent: bool) -> None:
        """Its kubelet does not answer; `silent`: and nothing of it is heard (partitioned or off)."""
        self.node_map[name] = dataclasses.replace(self.node_map[name], ready=False)
        if silent:
            self.silent_nodes.add(name)
        for pod in list(self.pod_list.values()):
            if pod.node == name and pod.phase is PodPhase.RUNNING:
                self.change(pod.name, reason="NodeLost", message=f"node {name} is not ready", ready=False)

    def node_back(self, name: str) -> None:
        self.node_map[name] = dataclasses.replace(self.node_map[name], ready=True)
        self.silent_nodes.discard(name)
        for pod in list(self.pod_list.values()):
            if pod.node == name and pod.phase is PodPhase.RUNNING and pod.reason == "NodeLost":
                self.change(pod.name, reason="", message="", ready=True)

    def crash(self, message: str = "ModuleNotFoundError: No module named 'torch'") -> None:
        """Every container that runs ends at once, again and again; the kubelet holds the next one back."""
        for pod in list(self.pod_list.values()):
            if pod.phase is PodPhase.RUNNING and not pod.terminating:
                self.change(
                    pod.name,
                    ready=False,
                    reason="CrashLoopBackOff",
                    message="back-off 10s restarting failed container",
                    crash_looping_seconds=max(0.0, self.at - pod.created_at - 1.0),
                    termination=Termination(1, "Error", message),
                )

    def finish(self, step: int = 300) -> None:
        """Every running pod ends well; the one in the lowest slot wrote the model."""
        running = sorted(
            (pod for pod in self.pod_list.values() if pod.phase is PodPhase.RUNNING and not pod.terminating),
            key=lambda pod: pod.slot,
        )
        for pod in running:
            final = pod is running[0]
            epoch = self.epoch_list[-1]
            self.change(
                pod.name,
                phase=PodPhase.SUCCEEDED,
                termination=Termination(
                    0,
                    "Done",
                    epoch=epoch.epoch,
                    step=step,
                    tokens=step * 4096,
                    loss=2.25,
                    manifest=f"step-{step:08d}.e{epoch.epoch:04d}" if final else "",
                    export="file:///models/demo" if final else "",
                    summary=self._summary(epoch) if final else None,
                ),
            )
