"""The trial actor: its training target, restarts, checkpoints and one allocation."""
