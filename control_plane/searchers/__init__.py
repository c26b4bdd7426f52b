"""Search methods as data: a method decides, the driver draws random numbers, the caller acts.

- `methods`: one module for each searcher. `registry` finds the modules.
- `spec`: the specification that each of these modules defines.
- `search`: the driver, with the functions that callers use.
- `method`: the operations and events that methods and driver exchange.
- `space`: the hyperparameter space. `randomness`: the random generator.

The code is pure: no clock, no generated ids, no input or output.
"""
