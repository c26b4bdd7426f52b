"""The object store: model code, logs, metrics and checkpoints as immutable files under checked
keys.
"""
