"""The command line: reads arguments, calls the parts below, prints. Decides nothing.

Data goes to stdout and talk to stderr. Exit codes: `trainingrun.api.errors`.
"""
