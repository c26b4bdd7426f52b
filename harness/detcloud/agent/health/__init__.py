"""The health of the agent's machine: GPUs and disk."""
