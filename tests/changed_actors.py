"""Changed types of actors, for tests of engines and of replays."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.engine import actor_types
from control_plane.engine.actor_types import ActorType


def change_actor_type(monkeypatch: pytest.MonkeyPatch, kind: str, **changes: Any) -> ActorType:
    """Replace fields of an actor type until `monkeypatch` ends. Return the type from before.

    Args:
        monkeypatch: the patches of the test.
        kind: the type's name, such as `trial`.
        changes: the new values of fields, such as `step`.
    """
    healthy = actor_types.ACTOR_TYPES[kind]
    changed = {**actor_types.ACTOR_TYPES, kind: replace(healthy, **changes)}
    monkeypatch.setattr(actor_types, "ACTOR_TYPES", changed)
    return healthy
