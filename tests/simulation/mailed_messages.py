"""Messages to trials as mail, where the sender's commit would deliver them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from control_plane.engine import actor_types


@contextmanager
def everything_mailed() -> Iterator[None]:
    """Let every message be mail, one to a trial too, which its sender's commit delivers else."""
    every_type = actor_types.ACTOR_TYPES
    mailed = replace(every_type["trial"], takes_deliveries=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_types, "ACTOR_TYPES", {**every_type, "trial": mailed})
        yield
