"""The protocol of tunnels between a user's machine and the ports of a trial (decision 0134)."""
