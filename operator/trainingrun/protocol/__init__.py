"""What the control plane and the workers say to each other: names, exit codes, messages, records.

Standard library only, because both environments import it and neither may pull in the other's dependencies.
Everything that crosses a process boundary is a frozen dataclass here, with one JSON form (`wire.to_json`,
`wire.from_json`).
"""

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
