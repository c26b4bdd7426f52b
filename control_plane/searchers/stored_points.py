"""Points of the hyperparameter space that a method stores for trials to come, or of its trials."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore


class Point(NamedTuple):
    """Hyperparameters, as JSON values. `request_id` is a UUID, "": the driver draws one."""

    hparams: Mapping[str, object]
    request_id: str = ""


def store_point(blobs: BlobStore, number: int, point: Point) -> None:
    """Store a point under a number, which a `Create` names."""
    blobs.write(_blob_name(number), json.dumps(point).encode())


def load_point(blobs: BlobStore, number: int) -> Point:
    """Return the point of that number; KeyError if there is none."""
    blob = blobs.read(_blob_name(number))
    if blob is None:
        raise KeyError(f"no point is stored under number {number}")
    return Point(*json.loads(blob))


def _blob_name(number: int) -> str:
    return f"kept/{number}"
