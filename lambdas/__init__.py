"""Entry points: what a process or a function starts with."""

import gc

# What is imported stays: to look through it for garbage again and again, as the default of 700 has
# it, is a sixth of the time in which a function starts.
gc.set_threshold(100_000)
