"""Models by their transformers configs: shape, exact parameter counts, work.

configs   a config (a dictionary, as config.json has it) -> `ModelShape`; what is not known is refused, with the reason
counts    parameters of the whole model and of a rank's share of a layer
flops     operations of a token, with and without attention, causal or whole
elements  what a layer keeps for its backward pass
"""
