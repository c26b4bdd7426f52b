"""A faster `dataclasses.replace`, for frozen records that change on every message.

`replace` runs the constructor with every field of a record; `evolve` copies the instance's
dictionary, which is several times faster for a record of twenty fields and saves an eighth of a
trial's time in the engine. It needs a dataclass without slots and without `__post_init__`.
"""

from typing import Any, TypeVar

T = TypeVar("T")


def evolve(value: T, **changes: Any) -> T:
    """A copy of `value` with some fields changed. The type checker does not check the names, so a
    name that is no field fails here.
    """
    new = object.__new__(type(value))
    before = value.__dict__
    fields = before | changes
    assert len(fields) == len(before), (
        f"{type(value).__name__} has no field {set(changes) - set(before)}"
    )
    # `object` sets it, since a frozen dataclass refuses to.
    object.__setattr__(new, "__dict__", fields)
    return new
