"""The file with the slot number of each GPU.

The driver may number GPUs in another order after a reboot, or after the loss of a GPU. The cluster
stores slots that users disabled, and the slots of running trials, by number.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from detcloud.agent.slots import Slot, number_slots
from detcloud.shared.files import read_json_object, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "slots.json"
ABSENT_MAX = 64
"""The most absent devices in the file. MIG instances get new UUIDs when created."""
NUMBER_MAX = 1_000_000


def keep_numbers(slots: Sequence[Slot], work: Path) -> list[Slot]:
    """Return the slots with the numbers that the work directory stores, and store new numbers.

    CPU slots are returned unchanged. An unreadable file counts as empty. A failure to write the
    file, for example on a full disk, is ignored: the numbers are stored at the next start.
    """
    if all(slot.type == "cpu" for slot in slots):
        return list(slots)
    path = work / FILE
    known = _stored_numbers(path)
    numbered = number_slots(slots, known)
    present = {slot.uuid: slot.id for slot in numbered}
    absent = [(uuid, number) for uuid, number in known.items() if uuid not in present]
    numbers = dict(absent[-ABSENT_MAX:]) | present
    if numbers != known:
        with contextlib.suppress(OSError):
            write_atomically(path, numbers)
    return numbered


def _stored_numbers(path: Path) -> dict[str, int]:
    """Return the stored number of each device by UUID. Repeated and invalid numbers are dropped."""
    numbers: dict[str, int] = {}
    for uuid, number in (read_json_object(path) or {}).items():
        is_valid = type(number) is int and 0 <= number <= NUMBER_MAX
        if is_valid and number not in numbers.values():
            numbers[uuid] = number
    return numbers
