"""The local cluster: a stand-in for Kubernetes made of files and processes on one machine.

All state is in one directory; every program may be killed at any instant and be started again. What
Kubernetes proves with API objects is proved here by the kernel: a node is alive while it holds its lock, a
pod is gone when no process carries its uid.
"""
