"""Schedulers: a snapshot of a pool in, a plan out. Pure; the pool commits the plan."""
