"""Functions of Cloud Run on this machine: processes like those in the containers.

All callers are accepted: Cloud Run's IAM is not emulated.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.emulators.eventarc import TOKEN_PATH
from tests.emulators.firestore import PROJECT
from tests.emulators.server import serving

ROOT = Path(__file__).parents[2]
ACCOUNT = f"functions@{PROJECT}.iam.gserviceaccount.com"


@contextmanager
def run_function(
    name: str,
    url: str,
    folder: Path,
    environment: Mapping[str, str],
    code: Sequence[Path] = (ROOT, ROOT / "harness"),
    options: Sequence[str] = ("-P",),
) -> Iterator[None]:
    """Serve a function at `url` with the code in `code`, by Python with `options`."""
    own = {
        "DETCLOUD_FUNCTION": name,
        "PYTHONPATH": ":".join(map(str, code)),
        "PORT": url.rpartition(":")[2],
    }
    line = [sys.executable, *options, "-m", "lambdas.gcp.serve"]
    with serving(line, url, folder / f"{name}.log", {**environment, **own}):
        yield


def write_key(folder: Path, tokens: str) -> Path:
    """Write the key of a service account that signs URLs, which nobody here checks."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    fields = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": text,
        "client_email": ACCOUNT,
        "client_id": "1",
        "token_uri": f"http://{tokens}{TOKEN_PATH}",
    }
    path = folder / "key.json"
    path.write_text(json.dumps(fields))
    return path
