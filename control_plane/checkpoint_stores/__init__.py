"""Checkpoint stores: one file for each type in `types`, and what removes, reads and signs files."""
