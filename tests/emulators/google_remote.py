"""The remote account on Google Cloud of a cluster whose functions run on AWS's emulator.

The account has Compute Engine, machines, and token services that let AWS identify callers.
"""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.gcp.trust_policies import Trust
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import gce_server
from tests.emulators.gce_machines import GceMachines
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.emulators.ministack import Ministack
from tests.emulators.token_services import TokenServices, token_services
from tests.patience import ANSWER_SECONDS_MAX

_ARN = re.compile(r"<Arn>([^<]+)</Arn>")
_IDENTITY = "Action=GetCallerIdentity&Version=2011-06-15"


@dataclass
class SimulatedRemote:
    """A remote account on Google Cloud.

    `project`: Compute Engine. `machines`: processes of instances. `tokens`: the token services.
    `environment`: variables that lead functions to these services.
    """

    project: Project
    machines: GceMachines
    tokens: TokenServices
    environment: Mapping[str, str]


@contextmanager
def google_remote(folder: Path, aws: Ministack, trust: Trust) -> Iterator[SimulatedRemote]:
    """Open the remote account of a cluster for the caller that `trust` names.

    The block's end terminates all machines.
    """
    keys = GoogleKeys()
    with ExitStack() as stack:
        tokens = stack.enter_context(token_services())
        tokens.provider, tokens.account = trust.provider, trust.names.email("launcher")
        # The caller in the provider's condition.
        tokens.trusted = trust.condition.split('"')[1]
        tokens.find_caller = lambda headers: _ask_aws(aws, headers)
        project = Project(
            lambda: time.time_ns() // 1_000_000,
            name=trust.names.project,
            running_ms=500,
            ending_ms=500,
            operation_ms=300,
            lets_in=tokens.holds,
        )
        gce = stack.enter_context(gce_server(project, beats=True))
        certificates = stack.enter_context(certificate_server(keys))
        machines = GceMachines(project, keys, folder, {})
        stack.callback(machines.end_all)
        environment = {
            "DETCLOUD_STS_ENDPOINT": tokens.url,
            "DETCLOUD_IAM_ENDPOINT": tokens.url,
            "DETCLOUD_COMPUTE_ENDPOINT": gce.url,
            # The address answers no call, so that prices come from the built-in table.
            "DETCLOUD_BILLING_ENDPOINT": "http://127.0.0.1:9",
            "DETCLOUD_CERTIFICATES_URL": certificates,
        }
        yield SimulatedRemote(project, machines, tokens, environment)


def _ask_aws(aws: Ministack, headers: Mapping[str, str]) -> str:
    """Return the ARN of the signer of a request with these headers, or "" if AWS refuses the
    request.
    """
    request = urllib.request.Request(f"{aws.url}/?{_IDENTITY}", method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            match = _ARN.search(answer.read().decode())
    except urllib.error.HTTPError:
        return ""
    return match[1] if match else ""
