"""Points of the hyperparameter space that a method stores: those of future or existing trials."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore


class Point(NamedTuple):
    """The hyperparameters of one trial."""

    hparams: Mapping[str, object]
    """JSON values by name."""
    request_id: str = ""
    """The trial's UUID. "": the driver draws a UUID."""


def store_point(blobs: BlobStore, number: int, point: Point) -> None:
    """Write a point to the blobs under a number. A `Create` refers to points by number."""
    blobs.write(_blob_name(number), json.dumps(point).encode())


def load_point(blobs: BlobStore, number: int) -> Point:
    """Return the point that was stored under a number. Raise KeyError if no point was stored."""
    blob = blobs.read(_blob_name(number))
    if blob is None:
        raise KeyError(f"no point is stored under number {number}")
    return Point(*json.loads(blob))


def _blob_name(number: int) -> str:
    return f"kept/{number}"
