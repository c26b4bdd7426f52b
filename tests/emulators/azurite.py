"""Azure Blob Storage on this machine: Microsoft's Azurite, which checks signatures."""

import base64
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.emulators.server import free_port, missing, require_program, serving

ROOT = Path(__file__).parents[2]
FOLDER = ".venv-azurite"
ACCOUNT = "tests"
# Azurite supports fewer API versions than Azure's client uses.
_FLAGS = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
KEY = base64.b64encode(b"the key of the account of the tests").decode()


@dataclass(frozen=True)
class Azurite:
    """A store at `url` with a single account."""

    url: str

    @property
    def connection_string(self) -> str:
        """The connection string for clients."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.url};"
        )

    def new_container(self) -> str:
        """The name of a new, empty container."""
        from azure.storage.blob import ContainerClient

        name = f"container-{secrets.token_hex(8)}"
        ContainerClient.from_connection_string(self.connection_string, name).create_container()
        return name

    def storage(self) -> dict[str, str]:
        """The `storage` of a new, empty container."""
        container = self.new_container()
        return {
            "type": "azure",
            "container": container,
            "connection_string": self.connection_string,
        }


@contextmanager
def azurite(folder: Path) -> Iterator[Azurite]:
    """Run a separate store with data and log in `folder`. Skip the test if Azurite is missing."""
    node = require_program("node", remedy="Azurite is a program of Node's")
    place = Path(os.environ.get("DETCLOUD_AZURITE", ROOT / FOLDER))
    program = place / "node_modules/azurite/dist/src/blob/main.js"
    if not program.exists():
        missing("azurite", f"there is no Azurite in {place}; `make setup` installs it")
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", port, "--location", folder / "data"]
    command = [str(option) for option in (node, program, *options, *_FLAGS)]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with serving(command, url, folder / "azurite.log", accounts, stop=signal.SIGKILL):
        yield Azurite(url)
