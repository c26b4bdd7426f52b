"""The API's starts of the relay's task."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from control_plane.aws.relay_tasks import FargateTasks, RelayPlace
from control_plane.objects.store import ObjectKey, ObjectStore
from control_plane.state.table import StateTable
from control_plane.usecases.relay_demand import RelayOnDemand
from lambdas.aws import relay_boot
from lambdas.clock import now_ms

# The time for the pull of the image, after which the container fetches the code.
_CODE_MS = 600_000


def open_relay(
    table: StateTable, objects: ObjectStore, client: Any, place: Mapping[str, Any]
) -> RelayOnDemand:
    """Return the relay of a cluster. No request is sent yet.

    Raises TypeError or KeyError if `place` lacks a field.

    Args:
        table: the state table.
        objects: the object store with the relay's code.
        client: a client of ECS.
        place: the fields of a RelayPlace.
    """
    where = RelayPlace(
        place["cluster"], place["definition"], tuple(place["subnets"]), place["group"]
    )
    tasks = FargateTasks(client, where, partial(_make_environment, objects))
    return RelayOnDemand(table, tasks, now_ms)


def _make_environment(objects: ObjectStore, record: str, revision: int) -> dict[str, str]:
    """Return the variables of a task for an attempt. The object store signs the code's URL."""
    key = ObjectKey(relay_boot.CODE_KEY)
    signed = objects.signed_url("GET", key, expires_ms=now_ms() + _CODE_MS)
    return {
        relay_boot.CODE: signed.url,
        relay_boot.RECORD: record,
        relay_boot.REVISION: str(revision),
        # Emulators of AWS serve the task as well.
        **{name: url for name, url in os.environ.items() if name.startswith("AWS_ENDPOINT_URL")},
    }
