"""S3 on this machine: SeaweedFS, which checks signatures, conditions, checksums and rights."""

import json
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from tests.emulators.server import free_port, require_program, serving
from tests.patience import poll_until

REGION = "us-east-1"
ACCESS_KEY = "AKIAOFTHETESTS"
SECRET_KEY = "secret-key-of-the-tests"
# Identities with all permissions in buckets that begin with their name, and none elsewhere.
GUESTS = ("checkpoints", "data")

_PORTS = ("s3.port", "master.port", "volume.port", "filer.port")
_READY_SECONDS_MAX = 30.0
VOLUMES_MAX = 10_000


@dataclass(frozen=True)
class SeaweedFs:
    """A store at `url` with an identity with all permissions, and guests."""

    url: str

    @cached_property
    def client(self) -> Any:
        """A client made by detcloud's code. All tests share the client, because making a client is
        slow.
        """
        return new_client(self._place(""))

    def guest_place(self, guest: str) -> BucketPlace:
        """Return a new, empty bucket of a guest, with the guest's keys."""
        place = self.place(kind=guest)
        return replace(place, access_key=f"AKIA{guest.upper()}", secret_key=f"secret of {guest}")

    def place(self, prefix: str = "", kind: str = "bucket") -> BucketPlace:
        """A new, empty bucket."""
        name = f"{kind}-{secrets.token_hex(8)}"
        self.client.create_bucket(Bucket=name)
        return self._place(name, prefix)

    def bucket(self, prefix: str = "") -> Bucket:
        """The requests on a new, empty bucket."""
        return Bucket(self.place(prefix), self.client)

    def _place(self, name: str, prefix: str = "") -> BucketPlace:
        return BucketPlace(name, prefix, self.url, REGION, ACCESS_KEY, SECRET_KEY)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[SeaweedFs]:
    """Run a separate store with data and log in `folder`."""
    program = require_program("weed")
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identity = {"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write"]}
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity, *map(_guest_identity, GUESTS)]}))
    # The default ports for gRPC are 10,000 higher and may exceed the range of ports.
    ports = {name: free_port() for port in _PORTS for name in (port, f"{port}.grpc")}
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder,
        "filer": "true",
        "s3": "true",
        "s3.config": config,
        "s3.iam": "false",
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        # Each new bucket takes several volumes. The default limit follows the free disk space.
        "volume.max": VOLUMES_MAX,
        **ports,
    }
    command = [str(program), "server", *(f"-{name}={value}" for name, value in options.items())]
    url = f"http://127.0.0.1:{ports['s3.port']}"
    with serving(command, url, folder / "seaweedfs.log", stop=signal.SIGKILL):
        store = SeaweedFs(url)
        _wait_until_it_stores(store)
        yield store


def _guest_identity(guest: str) -> dict[str, object]:
    keys = {"accessKey": f"AKIA{guest.upper()}", "secretKey": f"secret of {guest}"}
    actions = [f"{action}:{guest}-*" for action in ("Read", "Write", "List", "Tagging")]
    return {"name": guest, "credentials": [keys], "actions": actions}


def _wait_until_it_stores(store: SeaweedFs) -> None:
    """Wait until the store accepts objects. The store answers before its volumes are known."""
    from botocore.exceptions import ClientError

    refused: list[ClientError] = []

    def stores() -> bool:
        try:
            store.client.put_object(Bucket=store.place().name, Key="ready", Body=b"yes")
        except ClientError as error:
            refused.append(error)
            return False
        return True

    poll_until(stores, _READY_SECONDS_MAX, lambda: f"{refused[-1]}", pause_seconds=0.1)
