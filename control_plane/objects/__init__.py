"""The object store: model code, logs and checkpoints as immutable files under checked keys."""
