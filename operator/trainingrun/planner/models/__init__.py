"""Models by their transformers configs: shape, exact parameter counts, work.

configs   a config (a dictionary, as config.json has it) -> `ModelShape`, or a refusal with the reason
families  what each family does differently from Llama
counts    parameters of the whole model and of a rank's share of a layer
flops     operations of a token, with and without attention, causal or whole
"""
