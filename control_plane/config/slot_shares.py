"""The field `slots_per_trial`: whole slots, or a share of one slot.

With a share, several trials of an experiment use the same slot. The number of these trials is the
largest number whose shares fit into the slot: four for 0.25, and three for 0.3.
"""

from math import ceil
from typing import Annotated, Final

from pydantic import PlainSerializer, PlainValidator

from control_plane.config.section import refuse
from control_plane.field_types import COUNT_MAX, is_count, to_integer
from control_plane.findings import value_text

SHARERS_MAX: Final = 64
"""The most trials that share a slot."""
# 1 / 0.2 may be slightly less than 5.
_TOLERANCE: Final = 1e-9


def parse_slots(value: object) -> float:
    """Parse a number of slots: an integer from 0, or a share of a slot below 1.

    A whole float is accepted as an integer. Raises PydanticCustomError for other values.
    """
    value = to_integer(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"must be an integer, or a share of a slot such as 0.25, not {value_text(value)}")
    if is_count(value, 0):
        return value
    if isinstance(value, int):
        bound = "at least 0" if value < 0 else f"at most {COUNT_MAX}"
        refuse(f"must be {bound}, not {value}")
    if not 0 < value < 1:
        text = "must be an integer, or a share of a slot between 0 and 1"
        refuse(f"{text}, not {value_text(value)}", "a trial shares one slot, or has whole slots")
    if value < 1 / SHARERS_MAX:
        refuse(f"must be at least 1/{SHARERS_MAX}, not {value_text(value)}")
    return value


def whole_slots(slots: float) -> int:
    """Return the number of slots that a trial with `slots_per_trial` uses. 1 for a share."""
    return ceil(slots)


def sharers_of(slots: float) -> int:
    """Return how many trials with this `slots_per_trial` share a slot. 1 for whole slots."""
    return int(1 / slots + _TOLERANCE) if 0 < slots < 1 else 1


SlotsPerTrial = Annotated[float, PlainValidator(parse_slots), PlainSerializer(lambda slots: slots)]
