"""The remote accounts of an embedded cluster, which are stored in the record `clouds.json`."""

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Final

from control_plane.config.__main__ import read_config
from control_plane.config.problems import ConfigInvalid
from control_plane.config.server_clouds import ServerClouds, check_server_clouds
from control_plane.fleet.rows import (
    CLOUDS,
    launched_provider_type,
    read_fleets,
    read_instances,
    read_intents,
)
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, StateTable
from lambdas.clouds import CLOUDS as REMOTE_CLOUDS
from local_cluster.home import HomeFolder
from provisioner.settings import SettingsInvalid, decode_settings

RECORD: Final = "clouds"
NO_CLOUDS: Final = "none"
"""The choice that removes all remote accounts."""
CLOUD_REMEDY: Final = (
    "pools in a cloud need its remote account: `detcloud up --clouds FILE`; "
    "docs/resource-pools.md, Pools in a cloud of a cluster on your own machines"
)


class CloudsRefused(Exception):
    """The chosen remote accounts are invalid, or replace an account that still has instances."""


def choose_clouds(home: HomeFolder, choice: str) -> None:
    """Store the choice of remote accounts of a stopped cluster.

    With the removal of a cloud, the orphan cleanup of this cloud ends.

    Args:
        home: the data folder. The caller holds the locks of the folder and of the state.
        choice: the path of a file with the accounts, or NO_CLOUDS.

    Raises:
        CloudsRefused: the file or the stored record is invalid, or an instance or a launch is left
            in a replaced account.
        TableError: the state table failed.
        OSError: the record cannot be written.
    """
    former = load_clouds(home)
    wanted = None if choice == NO_CLOUDS else _read_file(choice)
    with closing(home.state.open()) as table:
        left = [
            text for kind in _find_replaced(former, wanted) for text in _find_instances(table, kind)
        ]
        if left:
            raise CloudsRefused(
                f"the remote accounts stay as they are, because {'; '.join(left)}: start without "
                "--clouds, remove the pools of this cloud with `detcloud cluster apply`, and wait "
                "until `detcloud resource-pool list` shows none of their instances"
            )
        if wanted is None:
            home.remove_record(RECORD)
        else:
            home.write_record(RECORD, wanted.model_dump(mode="json", exclude_none=True))
        _end_orphan_cleanup(table, () if wanted is None else wanted.clouds)


def load_clouds(home: HomeFolder) -> ServerClouds | None:
    """Return the stored remote accounts, if any. Raises CloudsRefused for an invalid record."""
    path = home.folder / f"{RECORD}.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CloudsRefused(f"{path} cannot be read: {error}") from None
    return _check_text(str(path), text)


def _read_file(path: str) -> ServerClouds:
    """Return the checked accounts of the user's file. Raises CloudsRefused."""
    try:
        text = read_config(path)
    except ConfigInvalid as error:
        raise CloudsRefused(error.problems[0].text(path)) from None
    return _check_text(path, text)


def _check_text(name: str, text: str) -> ServerClouds:
    """Return the checked accounts of a file. Raises CloudsRefused with a line for each problem."""
    try:
        return check_server_clouds(text)
    except ConfigInvalid as error:
        lines = (problem.text(name) for problem in error.problems)
        raise CloudsRefused("\n".join(lines)) from None


def _find_replaced(former: ServerClouds | None, wanted: ServerClouds | None) -> Iterator[str]:
    """Yield the provider type of each account that `wanted` lacks.

    An account at another place, or of a cluster with another name, is another account.
    """
    if former is None:
        return
    for kind, account in former.clouds.items():
        new = wanted.clouds.get(kind) if wanted is not None and wanted.name == former.name else None
        if new is None or new.place != account.place:
            yield kind


def _find_instances(table: StateTable, kind: str) -> Iterator[str]:
    """Yield a text for each pool with instances or open launches of a provider type.

    Raises TableError.
    """
    for fleet in read_fleets(table):
        if launched_provider_type(table, fleet.pool) != kind:
            continue
        names = [instance.id for instance in read_instances(table, fleet.pool)]
        names += [f"the launch {intent.id}" for intent in read_intents(table, fleet.pool)]
        if names:
            yield f"pool {fleet.pool} has {', '.join(names)} on {kind}"


def _end_orphan_cleanup(table: StateTable, kept: Collection[str]) -> None:
    """Delete the locations of instances in all clouds except the provider types `kept`.

    Without credentials, the cleanup would fail at these locations each minute. Raises TableError.
    """
    for row in list(read_rows(table, CLOUDS)):
        try:
            kind = decode_settings(row.body.decode()).kind
        except (SettingsInvalid, ValueError):
            continue
        if kind in REMOTE_CLOUDS and kind not in kept:
            table.commit((Delete(row.key, row.revision),))
