"""The limit on the values that trials and custom searches exchange."""

VALUE_BYTES_MAX = 8 * 1024
"""The limit on the JSON bytes of a trial's value in place of a metric, and of hyperparameters."""
