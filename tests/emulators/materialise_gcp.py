"""A Pulumi program on the emulators of Google Cloud.

Buckets and objects are made when they are registered. Functions become processes with the stack's
variables, which events and minutes call. Databases need no creation. Types without an emulator are
noted, and an unknown type is an error, so that no resource is dropped silently.
"""

import json
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from infra.terraform.recorder import Resource, is_provider, run_program
from lambdas.gcp.function_names import ACCOUNT_OF
from tests.emulators.cloud_run import run_function, write_key
from tests.emulators.eventarc import ACCESS_TOKEN, Eventarc, Trigger, eventarc, firestore_front
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.google_permissions import PermissionRecord, recorded_storage
from tests.emulators.server import free_port
from tests.patience import ANSWER_SECONDS_MAX

Outputs = Mapping[str, Any]
# Modules of types without an emulator.
NOTED: Final = frozenset(
    {
        "artifactregistry",
        "billing",
        "compute",
        "firestore",
        "monitoring",
        "projects",
        "serviceaccount",
    }
)
# Where nobody listens.
NOBODY: Final = "http://127.0.0.1:9"
_MEMBERS: Final = (
    "storage/bucketIAMMember",
    "cloudrunv2/serviceIamMember",
    "secretmanager/secretIamMember",
)


@dataclass
class GcpEmulatorMaker:
    """A maker of a stack's resources.

    `environments`: variables by service. `triggers`: (pattern of documents, service). `minute`: the
    service that is called each minute. `noted`: types without an emulator. `secrets`: the values of
    secrets by name.
    """

    gcs: FakeGcs
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    triggers: list[tuple[str, str]] = field(default_factory=list)
    minute: str = ""
    noted: set[str] = field(default_factory=set)
    secrets: dict[str, str] = field(default_factory=dict)

    def make(self, resource: Resource) -> tuple[str, Outputs]:
        """Make or note a resource and return its id and outputs. Raise KeyError for an unknown
        type.
        """
        if is_provider(resource):
            return resource.name, {}
        kind = resource.type.split(":")[1]
        recipe = RECIPES.get(kind)
        if recipe is not None:
            return recipe(self, resource.inputs)
        if kind.partition("/")[0] not in NOTED and kind not in _MEMBERS:
            raise KeyError(f"there is no recipe for {resource.type}")
        self.noted.add(kind)
        return resource.name, _invent_outputs(resource)


def _invent_outputs(resource: Resource) -> Outputs:
    """Return Google's outputs for a resource that is only noted."""
    email = f"{resource.inputs.get('accountId')}@tests.iam.gserviceaccount.com"
    outputs = {"email": email, "member": f"serviceAccount:{email}"}
    return outputs if "accountId" in resource.inputs else {"name": resource.name, **resource.inputs}


def materialise_gcp(
    program: Callable[[], None], team: str, config: Mapping[str, str], maker: GcpEmulatorMaker
) -> dict[str, Any]:
    """Make the program's stack on the emulators and return the stack's outputs."""
    return run_program(program, team, config, maker)


@dataclass
class RunningFunctions:
    """Functions at `urls`, by function name.

    Each minute calls the function `minute`, and `events` call functions.
    """

    urls: Mapping[str, str]
    minute: str
    events: Eventarc
    address: str
    environments: Mapping[str, Mapping[str, str]]
    folder: Path
    _runs: dict[str, ExitStack] = field(default_factory=dict)

    @property
    def database_url(self) -> str:
        """The address of Firestore at which commits are seen and become events."""
        return f"http://{self.address}"

    def start(self, function: str) -> None:
        """Start a function that does not run."""
        run = ExitStack()
        variables = self.environments[function]
        run.enter_context(run_function(function, self.urls[function], self.folder, variables))
        self._runs[function] = run

    def stop(self, function: str) -> None:
        """Stop a running function, so that its address refuses connections."""
        self._runs.pop(function).close()

    def stop_all(self) -> None:
        """Stop every function that runs."""
        for function in list(self._runs):
            self.stop(function)


@contextmanager
def run_functions(
    maker: GcpEmulatorMaker,
    firestore: Firestore,
    folder: Path,
    services: Collection[str],
    places: Mapping[str, str],
    record: PermissionRecord,
) -> Iterator[RunningFunctions]:
    """Run services of a stack with the stack's variables and the addresses in `places`.

    Addresses of the stack are replaced by local addresses. `record` gets the requests to the
    database and the store.
    """
    own = {name: maker.environments[name]["DETCLOUD_FUNCTION"] for name in services}
    urls = {function: f"http://127.0.0.1:{free_port()}" for function in own.values()}
    with ExitStack() as stack:
        events, address = stack.enter_context(eventarc(firestore.url))
        here = {
            **places,
            "GOOGLE_APPLICATION_CREDENTIALS": str(write_key(folder, address)),
            "DETCLOUD_HOST": "127.0.0.1",
        }
        moved = {
            "API_URL": "api",
            "GC_URL": "checkpoint_gc",
            "SUGGEST_URL": "suggest",
            "RELAY_URL": "relay",
        }
        environments = {}
        for name, function in own.items():
            account = ACCOUNT_OF.get(function, function)
            variables = maker.environments[name]
            settings = {
                setting: urls.get(moved[text], NOBODY)
                for text in moved
                if (setting := f"DETCLOUD_{text}") in variables
            }
            fronts = {
                "FIRESTORE_EMULATOR_HOST": stack.enter_context(
                    firestore_front(events, firestore.url, partial(record.note_rows, account))
                ),
                "STORAGE_EMULATOR_HOST": stack.enter_context(
                    recorded_storage(record, maker.gcs.url, account, ACCESS_TOKEN)
                ),
            }
            # Only the tick and `wake` call Compute Engine.
            launches = function in ("tick", "wake")
            elsewhere = {} if launches else {"DETCLOUD_COMPUTE_ENDPOINT": NOBODY}
            environments[function] = {**variables, **settings, **here, **elsewhere, **fronts}
        for pattern, service in maker.triggers:
            if service in own:
                events.triggers[own[service]] = Trigger(pattern, urls[own[service]])
        minute = maker.environments[maker.minute]["DETCLOUD_FUNCTION"]
        running = RunningFunctions(urls, minute, events, address, environments, folder)
        stack.callback(running.stop_all)
        for function in environments:
            running.start(function)
        yield running


def _bucket(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    name = str(inputs["name"])
    body = json.dumps({"name": name}).encode()
    _send(f"{on.gcs.url}/storage/v1/b?project={inputs['project']}", body, "application/json")
    return name, {}


def _object(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    source = inputs.get("source")
    content = inputs["content"].encode() if source is None else Path(source.path).read_bytes()
    on.gcs.upload(inputs["bucket"], inputs["name"], content, str(inputs["contentType"]))
    return str(inputs["name"]), {}


def _service(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    [container] = inputs["template"]["containers"]
    name = str(inputs["name"])
    on.environments[name] = {env["name"]: _env_value(on, env) for env in container["envs"]}
    return name, {"uri": f"https://{name}.run.app"}


def _env_value(on: GcpEmulatorMaker, env: Outputs) -> str:
    source = env.get("valueSource")
    return str(env["value"] if source is None else on.secrets[source["secretKeyRef"]["secret"]])


def _secret(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    return str(inputs["secretId"]), {}


def _secret_version(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    on.secrets[inputs["secret"]] = str(inputs["secretData"])
    return f"{inputs['secret']}/versions/1", {"version": "1"}


def _trigger(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    filters = {
        matching_criteria["attribute"]: matching_criteria["value"]
        for matching_criteria in inputs["matchingCriterias"]
    }
    service = inputs["destination"]["cloudRunService"]["service"]
    on.triggers.append((filters["document"], service))
    return str(inputs["name"]), {}


def _job(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    uri = str(inputs["httpTarget"]["uri"])
    on.minute = uri.removeprefix("https://").removesuffix(".run.app")
    return str(inputs["name"]), {}


def _send(url: str, content: bytes, kind: str) -> None:
    request = urllib.request.Request(url, content, {"Content-Type": kind})
    urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX).close()


RECIPES: Final[Mapping[str, Callable[[GcpEmulatorMaker, Outputs], tuple[str, Outputs]]]] = {
    "storage/bucket": _bucket,
    "storage/bucketObject": _object,
    "cloudrunv2/service": _service,
    "secretmanager/secret": _secret,
    "secretmanager/secretVersion": _secret_version,
    "eventarc/trigger": _trigger,
    "cloudscheduler/job": _job,
}
