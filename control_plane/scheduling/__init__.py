"""Schedulers: they turn a snapshot of a pool into a plan. Pure; the pool commits the plan."""
