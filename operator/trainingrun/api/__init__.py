"""The TrainingRun API: models, defaults, validation, status, conditions, and the CRD made from them.

Pure apart from `load`, which reads files. Nothing here decides anything about a run. Used by the CLI, the
planner's input, the controller and the adapters.
"""
