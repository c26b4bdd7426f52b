"""Trials as processes of this machine, without containers."""
