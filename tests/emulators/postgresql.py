"""PostgreSQL on this machine, from the packages of Debian."""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.emulators.server import free_port, require_program, serving

_ROLE = "postgres"
_REMEDY = "`apt-get install postgresql` installs it"
_NEW = ("--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")
_RUNNING = ("-clisten_addresses=127.0.0.1", "-cmax_connections=200")
_VERSIONS = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Postgresql:
    """A server on a port of this machine, with the trusted role `postgres`."""

    port: int

    def new_schema(self) -> str:
        """Create an empty schema, and return the URL of connections that use the schema."""
        name = f"s{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"create schema {name}")
        return f"{self.url()}?options=-csearch_path%3D{name}"

    def url(self) -> str:
        """Return the URL of the database of the role."""
        return f"postgresql://{_ROLE}@127.0.0.1:{self.port}/{_ROLE}"


@contextmanager
def postgresql(log: Path, *, is_durable: bool = False) -> Iterator[Postgresql]:
    """Run a new server with the log file `log`. `is_durable`: commits wait for the disk."""
    # Debian has a folder for each version.
    newest = sorted(_VERSIONS.glob("*/bin/postgres"), reverse=True)
    server = require_program("postgres", *newest, remedy=_REMEDY)
    # The server refuses to run as root, and its role cannot enter the folders of the tests.
    user = ["setpriv", f"--reuid={_ROLE}", f"--regid={_ROLE}", "--init-groups"]
    command = user if os.getuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    try:
        if command:
            shutil.chown(folder, _ROLE, _ROLE)
        data, port = folder / "data", free_port()
        options = [*_NEW, f"--username={_ROLE}", f"--pgdata={data}"]
        create = [*command, str(server.parent / "initdb"), *options]
        subprocess.run(create, check=True, capture_output=True, cwd=folder)
        options = [f"-cport={port}", "-clisten_addresses=127.0.0.1", "-cmax_connections=200"]
        options += [
            f"-cunix_socket_directories={folder}",
            f"-cfsync={'on' if is_durable else 'off'}",
        ]
        running = Postgresql(port)
        with serving(
            [*command, server, "-D", data, *options],
            lambda: _connect(running),
            log,
            stop=signal.SIGINT,
        ):
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _connect(server: Postgresql) -> None:
    """Open and close a connection. Raises ConnectionError while the server refuses it."""
    try:
        psycopg.connect(server.url(), connect_timeout=5).close()
    except psycopg.OperationalError as error:
        raise ConnectionError(str(error)) from error
