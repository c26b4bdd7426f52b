"""Object stores: model code, logs, metrics and checkpoints as immutable files under valid keys."""
