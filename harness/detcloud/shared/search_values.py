"""The limit of what a trial tells a custom search in the place of its metric."""

VALUE_BYTES_MAX = 8 * 1024
"""The bytes of a value as JSON; hyperparameters, which go the other way, have the same limit."""
