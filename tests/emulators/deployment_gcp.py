"""A team's whole cluster on Google Cloud on this machine.

The stack is on the emulators, events and minutes call the functions, and instances are real
processes. The functions and the simulated Compute Engine accept all callers: Google's IAM is
emulated only for trials' checkpoints and for proofs of instances.
"""

import hashlib
import json
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from control_plane.gcp.state_table import FirestoreTable
from detcloud.client import Client
from infra.gcp.names import TRIAL_ACCOUNTS, Names
from infra.gcp.program import make_stack
from infra.gcp.settings import parse_settings
from infra.gcp.trial_access import TrialAccess
from lambdas.gcp.function_names import FUNCTIONS
from tests.emulators.eventarc import ACCESS_TOKEN, CALL_SECONDS_MAX, Eventarc
from tests.emulators.expected_errors import describe_error
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import gce_server
from tests.emulators.gce_machines import GceMachines
from tests.emulators.gcp_stack_files import gcp_files
from tests.emulators.gcs_boundaries import NarrowedTokens, narrowed_storage
from tests.emulators.google_keys import GoogleKeys, certificate_server
from tests.emulators.google_permissions import PermissionRecord
from tests.emulators.materialise_gcp import (
    GcpEmulatorMaker,
    RunningFunctions,
    materialise_gcp,
    run_functions,
)
from tests.emulators.minutes import TICK_SECONDS, minutes
from tests.patience import ANSWER_SECONDS_MAX

PROJECT, PROJECT_NUMBER, REGION = "tests-1", "123456789012", "us-central1"


@dataclass
class GcpDeployment:
    """A team's cluster.

    `functions`: the running functions. `token`: the administrator's token. `noted`: resource types
    without an emulator. `storage`: the URL of the store for trials, which enforces the boundaries
    of `tokens`. `project`: Compute Engine. `machines`: processes of instances. `permissions`: the
    permissions that the accounts needed. `access`: the settings of trials' access.
    """

    team: str
    outputs: Mapping[str, Any]
    noted: frozenset[str]
    functions: RunningFunctions
    token: str
    table: FirestoreTable
    gcs: FakeGcs
    storage: str
    tokens: NarrowedTokens
    project: Project
    machines: GceMachines
    folder: Path
    permissions: PermissionRecord
    access: TrialAccess
    failures: list[str] = field(default_factory=list)
    tick_seconds: float = TICK_SECONDS

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.functions.urls["api"]

    @property
    def names(self) -> Names:
        """The names of the stack's resources."""
        return Names(self.team, PROJECT, PROJECT_NUMBER, REGION)

    @property
    def events(self) -> Eventarc:
        """The events of the cluster's database."""
        return self.functions.events

    def client(self, token: str = "") -> Client:
        """Return a client with a token, the administrator's if empty."""
        return Client(self.url, token or self.token)

    def call(self, function: str) -> int:
        """Call a function like Cloud Scheduler and return the status. Raise HTTPError for a status
        without success.
        """
        request = urllib.request.Request(self.functions.urls[function], b"", method="POST")
        with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX) as answer:
            return int(answer.status)

    def tick(self) -> None:
        """Call the function that runs each minute."""
        self.call(self.functions.minute)

    def stored_objects(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the names of the objects in a bucket of the stack, objects or checkpoints."""
        place = f"{self.gcs.url}/storage/v1/b/{self.outputs[bucket]}/o"
        url = f"{place}?prefix={quote(prefix, safe='')}"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return [item["name"] for item in json.load(answer).get("items", ())]

    def read_object(self, bucket: str, name: str) -> bytes:
        """Return the content of an object."""
        place = f"{self.gcs.url}/storage/v1/b/{self.outputs[bucket]}/o/{quote(name, safe='')}"
        with urllib.request.urlopen(f"{place}?alt=media", timeout=ANSWER_SECONDS_MAX) as answer:
            content: bytes = answer.read()
            return content

    def store_object(self, bucket: str, name: str, content: bytes) -> None:
        """Store an object in a bucket of the stack."""
        self.gcs.upload(self.outputs[bucket], name, content)

    def stored_checkpoints(self) -> list[str]:
        """Return the names of the objects in the bucket of checkpoints."""
        return self.stored_objects("checkpoints")

    def read_checkpoint(self, name: str) -> bytes:
        """Return the content of an object in the bucket of checkpoints."""
        return self.read_object("checkpoints", name)

    def state_table(self) -> FirestoreTable:
        """Return the cluster's state."""
        return self.table

    def billed_instances(self) -> list[Machine]:
        """Return the cluster's instances that are billed."""
        return self.project.billed_machines()

    def log_lines(self, function: str) -> list[Mapping[str, object]]:
        """Return the parsed lines of a function's log."""
        text = (self.folder / f"{function}.log").read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines()]

    def logged_errors(self) -> list[str]:
        """Return the errors in the logs of all functions. The relay is no function."""
        return [
            describe_error(function, str(line["message"]), str(line.get("stack_trace", "")))
            for function in self.functions.urls
            if function in FUNCTIONS
            for line in self.log_lines(function)
            if line["severity"] == "ERROR"
        ]


@contextmanager
def deployment(
    firestore: Firestore,
    gcs: FakeGcs,
    folder: Path,
    team: str,
    pools: str,
    functions: Collection[str] = FUNCTIONS,
    settings: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[GcpDeployment]:
    """Make a team's stack in a separate project and run some of its functions.

    `settings` and `environment` add settings and variables of the functions. Ticks run only when a
    test calls `tick` or uses `running`.
    """
    token = f"dct_of-the-administrator-of-{team}"
    config = {
        "detcloud:project": PROJECT,
        "detcloud:projectNumber": PROJECT_NUMBER,
        "detcloud:region": REGION,
        "detcloud:adminSha256": hashlib.sha256(token.encode()).hexdigest(),
        **gcp_files(folder / "given", pools),
        **settings,
    }
    maker = GcpEmulatorMaker(gcs)
    outputs = materialise_gcp(lambda: make_stack(lambda build: None), team, config, maker)
    variables = maker.environments[f"detcloud-{team}-api"]
    names = Names(team, PROJECT, PROJECT_NUMBER, REGION)
    record = _open_record(names)
    project = _open_project(record)
    tokens = _open_tokens(names, variables["DETCLOUD_STORAGE_ACCOUNT"])
    keys = GoogleKeys()
    with ExitStack() as stack:
        narrowed = stack.enter_context(narrowed_storage(tokens, gcs.url))
        gce = stack.enter_context(gce_server(project, beats=True))
        given = {
            "DETCLOUD_IAM_ENDPOINT": narrowed,
            "DETCLOUD_STS_ENDPOINT": narrowed,
            "DETCLOUD_COMPUTE_ENDPOINT": gce.url,
            # The address answers no call, so that prices come from the built-in table.
            "DETCLOUD_BILLING_ENDPOINT": "http://127.0.0.1:9",
            "DETCLOUD_CERTIFICATES_URL": stack.enter_context(certificate_server(keys)),
            **environment,
        }
        machines = GceMachines(project, keys, folder / "machines", {})
        stack.callback(machines.end_all)
        wanted = frozenset(
            f"detcloud-{team}-{function.replace('_', '-')}" for function in functions
        )
        run = run_functions(maker, firestore, folder, wanted, given, record)
        started = stack.enter_context(run)
        yield GcpDeployment(
            team=team,
            outputs=outputs,
            noted=frozenset(maker.noted),
            functions=started,
            token=token,
            table=FirestoreTable(
                firestore.client(variables["DETCLOUD_DATABASE"], PROJECT, started.database_url)
            ),
            gcs=gcs,
            storage=narrowed,
            tokens=tokens,
            project=project,
            machines=machines,
            folder=folder,
            permissions=record,
            access=_read_access(team, config),
        )


def _open_project(record: PermissionRecord) -> Project:
    return Project(
        lambda: time.time_ns() // 1_000_000,
        name=PROJECT,
        running_ms=500,
        ending_ms=500,
        operation_ms=300,
        on_call=partial(record.note_call, "tick"),
    )


def _open_tokens(names: Names, storage_account: str) -> NarrowedTokens:
    others = tuple(map(names.email, TRIAL_ACCOUNTS))
    return NarrowedTokens(storage_account, {ACCESS_TOKEN}, others)


def _read_access(team: str, config: Mapping[str, str]) -> TrialAccess:
    texts = {name.removeprefix("detcloud:"): text for name, text in config.items()}
    return parse_settings(team, texts).trial_access


def _open_record(names: Names) -> PermissionRecord:
    database = f"projects/{names.project}/databases/{names.database}"
    buckets = {names.objects: "objects", names.checkpoints: "checkpoints"}
    return PermissionRecord(database, buckets)


@contextmanager
def running(made: GcpDeployment) -> Iterator[None]:
    """Let minutes go by at a cluster until the block ends."""
    with minutes(made, CALL_SECONDS_MAX):
        yield
