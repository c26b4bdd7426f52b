"""Points of a space that a method was given or made itself, until a trial takes each."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from control_plane.searchers.parts import Parts


class Point(NamedTuple):
    """Hyperparameters, JSON values. `request_id` is a UUID, "": the driver draws one."""

    hparams: Mapping[str, object]
    request_id: str = ""


def keep(parts: Parts, number: int, point: Point) -> None:
    """Keep a point as that number, for a `Create` to name."""
    parts.write(_name(number), json.dumps(point).encode())


def kept(parts: Parts, number: int) -> Point:
    """The point of that number; KeyError if none is kept."""
    piece = parts.read(_name(number))
    if piece is None:
        raise KeyError(f"no point is kept as number {number}")
    return Point(*json.loads(piece))


def _name(number: int) -> str:
    return f"kept/{number}"
