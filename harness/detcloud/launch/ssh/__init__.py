"""The SSH server of an allocation, a process for each connection."""
