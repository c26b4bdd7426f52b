"""Instances that are agent processes on this machine."""
