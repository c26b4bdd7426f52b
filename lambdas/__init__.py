"""Entry points: what a process or a function starts with."""
