"""The Kubernetes adapter: pods, nodes, records and status as API objects. It translates; it decides nothing."""
