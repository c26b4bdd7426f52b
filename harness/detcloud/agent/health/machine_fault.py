"""A fault of the machine or of a device, as the agent reports the fault to the cluster."""

from __future__ import annotations

from typing import NamedTuple


class MachineFault(NamedTuple):
    """A fault by which a slot, or the whole machine, takes no new work."""

    slot: int | None
    """The id of the slot with the faulty device. None: the whole machine."""
    reason: str
    """The text for users, without a full stop."""
