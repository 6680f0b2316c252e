"""The membership service: hears the agents of a run and proposes its epochs.

An epoch exists if and only if its create-only record exists; this service only proposes records and tells
agents about them. Everything that decides is a pure state machine (`state.RunState`) with time as a
parameter; `server` and `hosts` are its hands. Nothing here knows how pods are made, how a plan is found, or
what kills a run.
"""
