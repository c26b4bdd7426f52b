"""The simulated Compute Engine over HTTP, below /compute/v1."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.emulators.gce import describing, inserting, single_inserting
from tests.emulators.gce.machine import GceError
from tests.emulators.gce.project import Fault, Project, Result
from tests.emulators.http_server import AnsweringHandler, serve_requests

_PATH = re.compile(r"/compute/v1/projects/(?P<project>[^/]+)/(?P<rest>.+)")
_PLACE = r"(?P<place>(?:zones|regions)/[^/]+)"
_INSTANCE = r"zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)"
ROUTES: Mapping[tuple[str, str], str] = {
    ("POST", rf"{_PLACE}/instances/bulkInsert"): "bulkInsert",
    ("POST", r"zones/(?P<zone>[^/]+)/instances"): "insert",
    ("GET", r"aggregated/instances"): "listInstances",
    ("GET", r"aggregated/operations"): "listOperations",
    ("GET", rf"{_PLACE}/operations/(?P<name>[^/]+)"): "getOperation",
    ("GET", rf"{_INSTANCE}"): "getInstance",
    ("DELETE", rf"{_INSTANCE}"): "deleteInstance",
    ("GET", rf"{_INSTANCE}/serialPort"): "getSerialPortOutput",
    ("GET", r"aggregated/machineTypes"): "listMachineTypes",
    ("GET", r"zones/(?P<zone>[^/]+)/machineTypes"): "listMachineTypesOfZone",
    ("GET", r"aggregated/acceleratorTypes"): "listAcceleratorTypes",
    ("GET", r"regions/(?P<region>[^/]+)"): "getRegion",
}

# Descriptions that do not depend on instances.
CATALOGUE: Mapping[str, Callable[[Project, Mapping[str, str], Mapping[str, str]], Result]] = {
    "listMachineTypes": lambda project, names, query: describing.list_machine_types(project, query),
    "listMachineTypesOfZone": lambda project, names, query: describing.list_machine_types(
        project, query, names["zone"]
    ),
    "listAcceleratorTypes": lambda project, names, query: describing.list_accelerator_types(
        project, query
    ),
    "getRegion": lambda project, names, query: describing.get_region(project, names["region"]),
}


class ConnectionLost(Exception):
    """A call without an answer."""


@dataclass
class GceServer:
    """The API of `project` at `url`, for DETCLOUD_COMPUTE_ENDPOINT. A new project resets all."""

    project: Project
    url: str


@contextmanager
def gce_server(project: Project, *, beats: bool = False) -> Iterator[GceServer]:
    """Serve a project on a free port.

    `beats`: hooks are called periodically, also without calls.
    """

    class Handler(_Handler):
        pass

    account = Handler.account = GceServer(project, "")
    tend = (lambda: account.project.tend()) if beats else None
    with serve_requests(Handler, tend=tend) as address:
        account.url = f"http://{address}"
        yield account


def call(
    project: Project, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]
) -> Result:
    """Carry a call out. Raises GceError, ConnectionLost."""
    match = _PATH.fullmatch(path)
    if match is None or match["project"] != project.name:
        raise GceError(404, "notFound", f"The resource '{path}' was not found")
    with project.lock:
        action, names = _action(method, match["rest"])
        project.calls.append(action)
        project.on_call(action, names, body)
        project.tend()
        faults = project.faults[action]
        fault = faults.popleft() if faults else None
        if fault is not None and fault.content is not None:
            return fault.content
        if fault is not None and not fault.carried_out:
            raise _fault_error(fault)
        result = _carry_out(project, action, names, query, body)
        if fault is not None:
            raise _fault_error(fault)
        project.tend()
        return result


def _action(method: str, rest: str) -> tuple[str, Mapping[str, str]]:
    for (known, pattern), action in ROUTES.items():
        matched = re.fullmatch(pattern, rest)
        if matched is not None and known == method:
            return action, matched.groupdict()
    raise GceError(404, "notFound", f"The resource '{rest}' was not found")


def _carry_out(
    project: Project,
    action: str,
    names: Mapping[str, str],
    query: Mapping[str, str],
    body: Mapping[str, Any],
) -> Result:
    if action in CATALOGUE:
        return CATALOGUE[action](project, names, query)
    match action:
        case "bulkInsert":
            request_id = query.get("requestId", "")
            return inserting.bulk_insert(project, names["place"], body, request_id)
        case "insert":
            request_id = query.get("requestId", "")
            return single_inserting.insert(project, names["zone"], body, request_id)
        case "listInstances":
            return describing.list_instances(project, query)
        case "listOperations":
            return describing.list_operations(project, query)
        case "getOperation":
            return describing.get_operation(project, names["place"], names["name"])
        case "getInstance":
            return describing.get_instance(project, names["zone"], names["name"])
        case "deleteInstance":
            return describing.delete_instance(project, names["zone"], names["name"])
        case _:
            return describing.get_serial_output(project, names["zone"], names["name"], query)


def _fault_error(fault: Fault) -> Exception:
    return fault.error or ConnectionLost()


class _Handler(AnsweringHandler):
    """A connection of a client."""

    account: GceServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        content = self.read_body()
        query, project = dict(parse_qsl(url.query)), self.account.project
        try:
            if not project.lets_in(self.headers.get("Authorization", "")):
                raise GceError(401, "authError", "Invalid Credentials")
            status, found = (
                200,
                call(
                    project,
                    self.command,
                    unquote(url.path),
                    query,
                    json.loads(content or b"{}"),
                ),
            )
        except GceError as error:
            status, found = error.status, error.content
        except ConnectionLost:
            self.close_connection = True
            return
        kind = {"Content-Type": "application/json; charset=UTF-8"}
        self.answer(status, json.dumps(found).encode(), kind)
