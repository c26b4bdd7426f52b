"""Firestore on this machine: Google's emulator, with preconditions and atomic batches.

The emulator needs no indexes, has no throttling or conflicts, and deletes no expired documents. The
clients here check each query against the deployed indexes.
"""

import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from control_plane.gcp.firestore_client import FirestoreClient, authorize_owner
from tests.emulators.firestore_indexes import check_index
from tests.emulators.server import free_port, missing, require_program, serving
from tests.patience import ANSWER_SECONDS_MAX

PROJECT = "tests"
_JAR = "platform/cloud-firestore-emulator/cloud-firestore-emulator.jar"
_MAIN = "com.google.cloud.datastore.emulator.firestore.CloudFirestore"
_SDKS = ("/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk")


class IndexedClient(FirestoreClient):
    """A client that refuses queries for which no index is deployed."""

    def run_query(self, query: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], bool]:
        """Read the documents of a structured query."""
        check_index(query)
        return super().run_query(query)


@dataclass(frozen=True)
class Firestore:
    """Databases at `url`. A database of any name exists and is empty at first."""

    url: str
    pool: urllib3.PoolManager

    def new_database(self) -> str:
        """The name of a new, empty database."""
        return f"database-{secrets.token_hex(8)}"

    def client(self, database: str, project: str = PROJECT, url: str = "") -> IndexedClient:
        """Return a client of a database, by way of the front at `url` if given.

        Clients share connections and need not be closed.
        """
        return IndexedClient(self.pool, project, database, authorize_owner, url or self.url)


@contextmanager
def firestore(folder: Path) -> Iterator[Firestore]:
    """Run a separate emulator with databases in memory and the log in `folder`."""
    jar = _find_jar()
    java = require_program("java", remedy="the emulator of Firestore needs it")
    port = free_port()
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.language=en")
    served = ("start", "--host=127.0.0.1", f"--port={port}")
    command = [str(java), *options, "-cp", str(jar), _MAIN, *served]
    url = f"http://127.0.0.1:{port}"
    with (
        serving(command, url, folder / "firestore.log", stop=signal.SIGKILL),
        urllib3.PoolManager(maxsize=16, retries=False, timeout=ANSWER_SECONDS_MAX) as pool,
    ):
        yield Firestore(url, pool)


def _find_jar() -> Path:
    """Find the emulator in an installation of Google's command line."""
    gcloud = shutil.which("gcloud")
    own = (str(Path(gcloud).resolve().parents[1]),) if gcloud else ()
    for sdk in (*own, *_SDKS):
        if (jar := Path(sdk) / _JAR).exists():
            return jar
    return missing("firestore", "there is no emulator of Firestore; gcloud components install it")
