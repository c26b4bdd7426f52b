"""Search methods as data: a method decides, the driver draws, the caller acts.

`methods` has one searcher a file, `registry` finds them and `spec` says what each tells of itself;
`search` is the driver and the way in; `method` holds the operations and events that both sides
speak; `space` the hyperparameters; `randomness` the generator. Everything here is pure: no clock,
no ids, no input or output.
"""
