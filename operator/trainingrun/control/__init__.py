"""The controller: observe, decide, apply.

`decide` and everything it calls (`observed`, `effects`, `seats`, `failures`, `ledger`, `folding`,
`conditions`, `reporting`) is pure: frozen data in and out, time is a parameter. `reconcile` applies what
comes back through a `ControlPort`; `loop` is the program around it.
"""
