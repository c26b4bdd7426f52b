"""The runtime that runs trials as processes of this machine, without containers."""
