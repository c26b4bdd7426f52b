"""The membership of a server in the group of servers that share a state in a database.

All servers of a group use the same secrets, so that tokens and signed URLs are valid at each
server. They present the same self-signed certificate, so that a pin is valid for each server. They
use the same folder of objects and checkpoints, or the same bucket. Their own agents have different
names. A server with its state in a file is not in a group.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from control_plane.rows import cluster_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, StateTable, Unavailable
from local_cluster.certificates import SELF_SIGNED_FILE
from local_cluster.home import HomeFolder
from local_cluster.object_bucket import files_id, load_or_create_files_id
from local_cluster.tunnel_relay import SECRET_FILE

FIRST_NAME = "local"
"""The name of a group's first server, and of a server without a group."""
SECRET_FILES = ("token", "agent.token", "signing.key", SECRET_FILE)
_PLACE = Key(*cluster_rows.OBJECTS_PLACE.only_key)
_SERVERS = cluster_rows.SERVER.partition
_SECRETS = cluster_rows.SHARED_SECRET.partition
# The record of a data folder whose certificate is that of a group.
_SHARED_RECORD = "shared-certificate"
_NAME_CHARACTERS_MAX = 40


def join_group(home: HomeFolder, create_certificate: Callable[[], object] | None = None) -> str:
    """Let a server join the group of servers with a state; return the server's name.

    Check the folder of objects, replace the secret files of the data folder by the secrets of the
    group, and choose a name. The caller excludes the start of other servers. Return FIRST_NAME,
    without a change, if the state is in a file.

    Args:
        home: the data folder.
        create_certificate: writes the file SELF_SIGNED_FILE if the file is missing, and raises
            HomeInvalid if the file is damaged. Without the argument, the server presents no
            self-signed certificate, and the certificate of the group is left alone.

    Raises:
        Unavailable: the group uses another folder or bucket of objects.
        HomeInvalid: a file with a secret is invalid, or the bucket cannot be used.
        TableError: the state table cannot be used.
        OSError: a file cannot be read or written.
    """
    place = home.state
    if not place.is_shareable:
        return FIRST_NAME
    with closing(place.open()) as table:
        _check_files_folder(home, table)
        home_id = home.load_or_create_id()
        is_member = home_id in _read_servers(table).values()
        for name in SECRET_FILES:
            _share_secret(home, table, name, is_member=is_member)
        if create_certificate is not None:
            _share_certificate(home, table, create_certificate)
        return _choose_name(table, home_id)


def forget_group(table: StateTable) -> None:
    """Delete the rows of the group from a state that no server uses. Raises TableError.

    The next server then decides the secrets and the folder of objects.
    """
    partitions = (_SERVERS, _SECRETS, cluster_rows.DUTY.partition)
    keys = [row.key for partition in partitions for row in read_rows(table, partition)]
    for key in (*keys, _PLACE):
        table.commit((Delete(key, Expect.ANYTHING),))


def _check_files_folder(home: HomeFolder, table: StateTable) -> None:
    """Compare the folder or bucket of objects with the place of the group.

    The first server stores the id of its place. Raises Unavailable if the place is another one,
    HomeInvalid for a bucket that cannot be used, and TableError and OSError.
    """
    row = table.get(_PLACE)
    if row is None:
        fields = {"id": load_or_create_files_id(home, table), "folder": _place_text(home)}
        table.commit((Put(_PLACE, 1, json.dumps(fields).encode(), Expect.ANYTHING),))
        return
    stored = json.loads(row.body)
    if stored["id"] != files_id(home):
        raise Unavailable(
            f"{_place_text(home)} is not the folder of objects and checkpoints of this state; "
            f"the first server uses {stored['folder']}. Name this place with --files; a folder "
            "must be mounted here"
        )


def _place_text(home: HomeFolder) -> str:
    """Return the address of the bucket with the objects, or else the path of the folder."""
    return home.bucket[0] or str(home.files)


def _share_secret(home: HomeFolder, table: StateTable, name: str, *, is_member: bool) -> None:
    """Let the secret file `name` have the secret of the group, which the first server decides.

    A member without the file makes a new secret for the group. The other servers use the new secret
    after their next start. Raises HomeInvalid for an invalid file, TableError and OSError.

    Args:
        is_member: whether the server has joined the group before.
    """
    key = Key(_SECRETS, name)
    row = table.get(key)
    if row is None or (is_member and home.read_secret(name) is None):
        secret = home.load_or_create_secret(name)
        body = json.dumps({"secret": secret}).encode()
        table.commit((Put(key, 1 if row is None else row.revision + 1, body, Expect.ANYTHING),))
        return
    secret = str(json.loads(row.body)["secret"])
    if home.read_secret(name) != secret:
        home.write_secret(name, secret)


def _share_certificate(home: HomeFolder, table: StateTable, create: Callable[[], object]) -> None:
    """Let SELF_SIGNED_FILE have the certificate and the key of the group.

    The first server decides, so that agents need a single pin for all servers. A server whose
    shared file was deleted makes a new certificate for the group. Raises HomeInvalid for a damaged
    file, TableError and OSError.
    """
    key = Key(_SECRETS, SELF_SIGNED_FILE)
    row = table.get(key)
    path = home.folder / SELF_SIGNED_FILE
    was_deleted = not path.exists() and bool(home.read_record(_SHARED_RECORD))
    if row is None or was_deleted:
        create()
        body = json.dumps({"secret": path.read_text("ascii")}).encode()
        table.commit((Put(key, 1 if row is None else row.revision + 1, body, Expect.ANYTHING),))
    else:
        shared = str(json.loads(row.body)["secret"])
        if not path.exists() or path.read_bytes() != shared.encode():
            home.write_text(SELF_SIGNED_FILE, shared)
    home.write_record(_SHARED_RECORD, {"file": SELF_SIGNED_FILE})


def _choose_name(table: StateTable, home_id: str) -> str:
    """Return the name of the server with a data folder, and store a new name. Raises TableError."""
    servers = _read_servers(table)
    for name, known in servers.items():
        if known == home_id:
            return name
    body = json.dumps({"home": home_id, "host": socket.gethostname()}).encode()
    name = next(name for name in _names() if name not in servers)
    with suppress(Conflict):
        table.commit((Put(Key(_SERVERS, name), 1, body, Expect.ABSENT),))
        return name
    return _choose_name(table, home_id)


def _read_servers(table: StateTable) -> dict[str, str]:
    """Return the id of the data folder of each server by the server's name. Raises TableError."""
    return {row.key.sort: str(json.loads(row.body)["home"]) for row in read_rows(table, _SERVERS)}


def _names() -> Iterator[str]:
    """Yield the possible names of a server: FIRST_NAME, the host's name, and numbered names."""
    yield FIRST_NAME
    host = re.sub("[^A-Za-z0-9-]", "-", socket.gethostname())[:_NAME_CHARACTERS_MAX].strip("-")
    yield host or "server"
    number = 2
    while True:
        yield f"{host or 'server'}-{number}"
        number += 1
