"""A project on Google Cloud for pools of a server on own machines, which acts as a service account.

The server has the key of another service account, as its application default credentials.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from google.auth import jwt

from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import gce_server
from tests.emulators.gce_machines import GceMachines
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.emulators.token_services import TokenServices, token_services


@dataclass
class GoogleLab:
    """A project on Google Cloud.

    `environment`: the variables of the server, which name the key of the account `own` and the
    addresses of the services.
    """

    project: Project
    machines: GceMachines
    tokens: TokenServices
    own: str
    environment: Mapping[str, str]


@contextmanager
def google_lab(folder: Path, project_id: str, launcher: str) -> Iterator[GoogleLab]:
    """Open a project whose Compute Engine answers only tokens of the service account `launcher`.

    Only the account `own` may act as `launcher`. The block's end terminates all machines.
    """
    folder.mkdir(exist_ok=True)
    own = f"lab@{project_id}.iam.gserviceaccount.com"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def knows_assertion(assertion: str) -> bool:
        try:
            return bool(jwt.decode(assertion, certs=public)["iss"] == own)
        except ValueError:
            return False

    with ExitStack() as stack:
        tokens = stack.enter_context(token_services())
        tokens.account, tokens.knows_assertion = launcher, knows_assertion
        project = Project(
            lambda: time.time_ns() // 1_000_000,
            name=project_id,
            running_ms=500,
            ending_ms=500,
            operation_ms=300,
            lets_in=tokens.holds,
        )
        gce = stack.enter_context(gce_server(project, beats=True))
        keys = GoogleKeys()
        machines = GceMachines(project, keys, folder, {})
        stack.callback(machines.end_all)
        credentials = {
            "type": "service_account",
            "project_id": project_id,
            "private_key_id": "1",
            "private_key": key.private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            ).decode(),
            "client_email": own,
            "token_uri": f"{tokens.url}/token",
        }
        path = folder / "key.json"
        path.write_text(json.dumps(credentials))
        environment = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(path),
            "DETCLOUD_STS_ENDPOINT": tokens.url,
            "DETCLOUD_IAM_ENDPOINT": tokens.url,
            "DETCLOUD_COMPUTE_ENDPOINT": gce.url,
            # The address answers no call, so that prices come from the built-in table.
            "DETCLOUD_BILLING_ENDPOINT": "http://127.0.0.1:9",
            "DETCLOUD_CERTIFICATES_URL": stack.enter_context(certificate_server(keys)),
        }
        yield GoogleLab(project, machines, tokens, own, environment)
