"""AWS on this machine: ministack, in a virtual environment beside the environment of the tests.

A package that a function lacks is therefore missing here, too.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from tests.emulators.server import free_port, require_program, serving
from tests.patience import ANSWER_SECONDS_MAX

REGION = "us-east-1"
ACCOUNT = "000000000000"


@dataclass(frozen=True)
class Ministack:
    """An account at `url`. Credentials that the account did not issue are the root's."""

    url: str
    key: str = "test"
    secret: str = "test"

    def client(self, service: str, **named: Any) -> Any:
        """Return a boto3 client without retries."""
        return _client(self.url, self.key, self.secret, service, **named)


# Making a client takes longer than a call.
@lru_cache(maxsize=100)
def _client(url: str, key: str, secret: str, service: str, **named: Any) -> Any:
    options = {"read_timeout": ANSWER_SECONDS_MAX, **named}
    client = boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **options),
    )
    if service == "ec2":
        client.meta.events.register("before-call.ec2", _answer_dry_run)
    return client


def _answer_dry_run(params: Mapping[str, Any], **_: Any) -> tuple[AWSResponse, Any] | None:
    """Answer a request with DryRun in the emulator's place, which would carry the request out."""
    if params["body"].get("DryRun") != "true":
        return None
    text = "Request would have succeeded, but DryRun flag is set."
    answer = {"Error": {"Code": "DryRunOperation", "Message": text}}
    return AWSResponse("", 412, {}, None), answer


@contextmanager
def ministack(folder: Path, *, enforces_iam: bool = False) -> Iterator[Ministack]:
    """Run a separate account with the log in `folder`. `enforces_iam`: check permissions."""
    beside = Path(f"{sys.prefix}-ministack") / "bin" / "ministack"
    program = require_program("ministack", beside)
    port = free_port()
    environment = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": "localhost",
        "IOT_MTLS_ENABLED": "false",
        "LOG_LEVEL": "WARNING",
        **({"AUTH": "true"} if enforces_iam else {}),
    }
    url = f"http://127.0.0.1:{port}"
    health, log = f"{url}/_ministack/health", folder / "ministack.log"
    group = 0
    try:
        with serving([program], health, log, environment) as process:
            group = process.pid
            yield Ministack(url)
    finally:
        # Ministack does not end its workers. An idle worker ends at the end of its input; a worker
        # in a call ends after the call, which may take minutes.
        with suppress(ProcessLookupError):
            if group:
                os.killpg(group, signal.SIGKILL)
