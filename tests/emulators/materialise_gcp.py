"""A program of Pulumi on the emulators of Google Cloud: buckets and objects are made as they are
registered; functions become processes with the variables that the stack gives them, called by
events and minutes as it says.

A database needs no making there, and what no emulator has is noted: that a type of resource is none
of either is an error, so that nothing that a program says is dropped without a word.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from infra.terraform.recorder import Resource, is_provider, run_program
from tests.emulators.cloud_run import run_function, write_key
from tests.emulators.eventarc import Trigger, eventarc
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.server import free_port
from tests.patience import ANSWER_SECONDS_MAX

Outputs = Mapping[str, Any]
# Types that no emulator here has; their modules.
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
_MEMBERS: Final = ("storage/bucketIAMMember", "cloudrunv2/serviceIamMember")


@dataclass
class GcpEmulatorMaker:
    """A maker of a stack's resources, and what it has noted: `environments` of services by their
    names, `triggers` as (pattern of documents, service), the service that each `minute` calls, and
    `noted` types.
    """

    gcs: FakeGcs
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    triggers: list[tuple[str, str]] = field(default_factory=list)
    minute: str = ""
    noted: set[str] = field(default_factory=set)

    def make(self, resource: Resource) -> tuple[str, Outputs]:
        """Make a resource, as ResourceMaker has it."""
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
    """Return what Google would tell of a resource that is only noted."""
    email = f"{resource.inputs.get('accountId')}@tests.iam.gserviceaccount.com"
    told = {"email": email, "member": f"serviceAccount:{email}"}
    return told if "accountId" in resource.inputs else {"name": resource.name, **resource.inputs}


def materialise_gcp(
    program: Callable[[], None], team: str, config: Mapping[str, str], maker: GcpEmulatorMaker
) -> dict[str, Any]:
    """Make the program's stack on the emulators, and return its outputs."""
    return run_program(program, team, config, maker)


@dataclass(frozen=True)
class RunningFunctions:
    """The addresses of functions that run, by the names of their services."""

    urls: Mapping[str, str]
    minute: str

    def call_minute(self) -> int:
        """Call what each minute calls; returns the status of its answer."""
        request = urllib.request.Request(self.urls[self.minute], b"", method="POST")
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:
            return int(answer.status)


@contextmanager
def run_functions(
    maker: GcpEmulatorMaker, firestore: Firestore, folder: Path, without: frozenset[str]
) -> Iterator[RunningFunctions]:
    """Run the functions of a stack but those of these services, with their own variables; addresses
    in them are those on this machine.
    """
    names = [it for it in maker.environments if it not in without]
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in names}
    own = {variables["DETCLOUD_FUNCTION"]: name for name, variables in maker.environments.items()}
    with ExitStack() as stack:
        events, address = stack.enter_context(eventarc(firestore.url))
        here = {
            "FIRESTORE_EMULATOR_HOST": address,
            "STORAGE_EMULATOR_HOST": maker.gcs.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(write_key(folder, address)),
            "DETCLOUD_HOST": "127.0.0.1",
        }
        moved = {"API_URL": "api", "GC_URL": "checkpoint_gc", "SUGGEST_URL": "suggest"}
        here |= {
            f"DETCLOUD_{setting}": urls.get(own[function], "http://127.0.0.1:9")
            for setting, function in moved.items()
        }
        for name in names:
            variables = maker.environments[name]
            given = {it: value for it, value in here.items() if it in variables or _is_address(it)}
            function = variables["DETCLOUD_FUNCTION"]
            stack.enter_context(run_function(function, urls[name], folder, {**variables, **given}))
        for pattern, service in maker.triggers:
            if service in urls:
                events.triggers[service] = Trigger(pattern, urls[service])
        yield RunningFunctions(urls, maker.minute)


def _is_address(variable: str) -> bool:
    """Whether a variable is of this machine alone."""
    return not variable.startswith("DETCLOUD_") or variable == "DETCLOUD_HOST"


def _bucket(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    name = str(inputs["name"])
    body = json.dumps({"name": name}).encode()
    _send(f"{on.gcs.url}/storage/v1/b?project={inputs['project']}", body, "application/json")
    return name, {}


def _object(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    source = inputs.get("source")
    content = inputs["content"].encode() if source is None else Path(source.path).read_bytes()
    place = f"{on.gcs.url}/upload/storage/v1/b/{inputs['bucket']}/o"
    url = f"{place}?uploadType=media&name={quote(inputs['name'], safe='')}"
    _send(url, content, str(inputs["contentType"]))
    return str(inputs["name"]), {}


def _service(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    [container] = inputs["template"]["containers"]
    name = str(inputs["name"])
    on.environments[name] = {it["name"]: it["value"] for it in container["envs"]}
    return name, {"uri": f"https://{name}.run.app"}


def _trigger(on: GcpEmulatorMaker, inputs: Outputs) -> tuple[str, Outputs]:
    filters = {it["attribute"]: it["value"] for it in inputs["matchingCriterias"]}
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
    "eventarc/trigger": _trigger,
    "cloudscheduler/job": _job,
}
