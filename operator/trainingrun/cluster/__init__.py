"""Adapters of the ports: what a pod, a node and a record are in one kind of cluster. They decide nothing."""
