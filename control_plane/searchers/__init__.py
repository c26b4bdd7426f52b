"""Search methods as data: a method decides, the driver draws, the caller acts.

`search` is the driver and the way in; `method` holds the operations and events that both sides
speak; `space` the hyperparameters; `randomness` the generator; each algorithm has a file of its
own. Everything here is pure: no clock, no ids, no input or output.
"""
