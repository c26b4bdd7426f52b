"""The choice of the place of the state, and the move of a state to another place."""

import tempfile
import time
from contextlib import closing
from pathlib import Path

from control_plane.local.state_places import FILE, FilePlace, StatePlace, database_place
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Unavailable
from local_cluster.home import HomeFolder
from local_cluster.server_group import forget_group

FILE_STATE = "file"
"""The choice of the file in the data folder."""


def choose_state(home: HomeFolder, choice: str) -> bool:
    """Let the state of a stopped cluster be at another place; return whether a state was moved.

    Copy the present state to a new place without a state. Then rename a former file, and delete
    the table of a former database. If both places are the same, do nothing.

    Args:
        home: the data folder, whose lock the caller holds.
        choice: the URL of a database of PostgreSQL, or FILE_STATE.

    Raises:
        StateInUse: another server uses one of the states.
        Unavailable: the URL or a state cannot be used, or both places have a state.
        OSError: a file cannot be read or written.
    """
    url = None if choice == FILE_STATE else choice
    place: StatePlace = FilePlace(home.folder) if url is None else database_place(url)
    if home.state_url() == url:
        return False
    former = home.state
    if not former.exists():
        # Other servers may use the state at the place, which is only checked.
        place.exists()
        home.set_state_url(url)
        return False
    with former.claim(), place.claim():
        _copy_state(home, place)
        home.set_state_url(url)
        former.retire(time.strftime("before-move-%Y%m%dT%H%M%S", time.gmtime()))
    return True


def _copy_state(home: HomeFolder, place: StatePlace) -> None:
    """Copy the state to a place without a state. Raises Unavailable if the place has a state."""
    if place.exists():
        raise Unavailable(
            f"{place.name} and {home.state.name} both have a state; "
            "`detcloud backup` copies one state, and `detcloud restore` replaces the other"
        )
    with tempfile.TemporaryDirectory(prefix=".move-", dir=home.folder) as scratch:
        copy = Path(scratch) / FILE
        home.state.copy_to(copy)
        with closing(SqliteTable(copy)) as table:
            # The secrets in the data folder may be newer.
            forget_group(table)
        place.replace_by(copy)
