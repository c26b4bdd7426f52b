"""The runtime that runs trials as containers of the machine's Docker engine."""
