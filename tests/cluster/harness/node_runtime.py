"""Configuration of a node's containerd, and of what it mounts into every container.

The two Python environments and the checkout are mounted read-only into every container by containerd's base
runtime specification. So pods need no hostPath volume (the restricted Pod Security level forbids it), images stay
small, and a change of code needs no new image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.harness import layout
from tests.cluster.harness.layout import Node
from tools import cache


def containerd_toml(node: Node) -> str:
    # No OOM score below the daemon's own: machines without CAP_SYS_RESOURCE could start no pod otherwise.
    # Pod network namespaces below the node's state, so it is plain which node they belong to.
    return f"""version = 2
root = "{node.containerd_root}"
state = "{node.containerd_state}"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{layout.PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{node.folder / "runtime-spec.json"}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder / "containerd" / "opt"}"
"""


def runtime_spec(mounts: Mapping[str, Path]) -> dict[str, Any]:
    """The specification that every container starts from: containerd's own, and our read-only mounts.

    `mounts` maps a name below /opt/trainingrun to a folder of the host.
    """
    spec: dict[str, Any] = json.loads(cache.run("ctr", "oci", "spec", timeout_seconds=20))
    # Limits of open files come from the daemon instead: the generated one (1024) is too low for a trainer.
    spec["process"].pop("rlimits", None)
    # As Kubernetes runs containers: their /run is a folder of the image.
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] != "/run"]
    spec["mounts"] += [
        {
            "destination": str(layout.IN_CONTAINERS / name),
            "type": "bind",
            "source": str(source),
            "options": ["rbind", "ro", "nosuid", "nodev"],
        }
        for name, source in sorted(mounts.items())
    ]
    return spec


def cni(node: Node) -> dict[str, Any]:
    """The pod network: a bridge on the node, which is also the pods' gateway; addresses are not translated."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,  # brings its default route; a second one would be refused
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.folder / "ipam"),
            "ranges": [[{"subnet": node.pod_range}]],
        },
    }
    return {"cniVersion": "1.0.0", "name": layout.CNI_NETWORK, "plugins": [bridge]}


def kubelet_config(node: Node, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
        "clusterDNS": [layout.CONTROL_ADDRESS],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "3s",
        "podLogsDir": str(node.folder / "pod-logs"),
        # Images come from nowhere, so none may be removed.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "localStorageCapacityIsolation": False,
    }


def kube_proxy_config(node: Node, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(pki / "kube-proxy.kubeconfig")},
        "mode": "nftables",
        "hostnameOverride": node.name,
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": layout.POD_RANGE,
        # These are kernel settings of the whole machine: left alone.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
