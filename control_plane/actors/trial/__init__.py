"""The trial actor: the target of training, restarts, checkpoints and a single allocation."""
