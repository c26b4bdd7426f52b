"""Pure schedulers: each turns a snapshot of a pool into a plan, which the pool commits."""
