"""Permissions that requests to Google Cloud need by Google's references, and a record of needed
permissions.

No emulator checks permissions. A bulk insert needs the permissions of each field in its body. A
commit of Firestore needs the permissions of its writes. Replacing an object of a bucket needs the
permission to delete.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.emulators.firestore_indexes import check_index
from tests.emulators.forwarding import ForwardingHandler
from tests.emulators.http_server import serve_requests
from tests.emulators.storage_requests import asked_action

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Use:
    """A permission that `account` needed.

    `kind` and `place`: a place like `Place` of infra.gcp.policies. `resource`: the resource's name
    for conditions, or "" if conditions do not read a name.
    """

    account: str
    permission: str
    kind: str
    place: str = ""
    resource: str = ""


@dataclass
class PermissionRecord:
    """The permissions that a cluster's accounts needed.

    `database`: the resource name of the database. `buckets`: names of places by bucket. `unserved`:
    queries without a deployed index.
    """

    database: str
    buckets: Mapping[str, str]
    uses: set[Use] = field(default_factory=set)
    unserved: list[str] = field(default_factory=list)

    def note_rows(self, account: str, verb: str, content: bytes) -> None:
        """Note a request to the database."""
        if verb == "runQuery":
            try:
                check_index(json.loads(content)["structuredQuery"])
            except AssertionError as error:
                self.unserved.append(f"{account}: {error}")
        for permission in firestore_permissions(verb, content):
            self.uses.add(Use(account, permission, "project", "", self.database))

    def note_object(self, account: str, action: str, bucket: str, name: str) -> None:
        """Record a request for an object, or for a list of objects with the prefix `name`."""
        resource = f"projects/_/buckets/{bucket}"
        resource = resource if action == "list" else f"{resource}/objects/{name}"
        permission = f"storage.objects.{action}" if name or action == "list" else action
        self.uses.add(Use(account, permission, "bucket", self.buckets[bucket], resource))

    def note_call(self, account: str, action: str, names: Mapping[str, str], body: Body) -> None:
        """Record a call of Compute Engine by the name of the method."""
        for permission, resource in compute_permissions(action, names, body):
            self.uses.add(Use(account, permission, "project", "", resource))
        for permission, region in subnetwork_permissions(body):
            self.uses.add(Use(account, permission, "subnetwork", region))
        if body.get("instanceProperties", body).get("serviceAccounts"):
            self.uses.add(Use(account, "iam.serviceAccounts.actAs", "account", "instance"))


def firestore_permissions(verb: str, content: bytes) -> set[str]:
    """Return the permissions of a request to a database. `verb` is the method in the path."""
    if verb != "commit":
        verbs = {"batchGet": ("get",), "runQuery": ("get", "list")}[verb]
    else:
        verbs = tuple(
            name for write in json.loads(content)["writes"] for name in _write_verbs(write)
        )
    return {f"datastore.entities.{name}" for name in verbs}


def _write_verbs(write: Body) -> tuple[str, ...]:
    if "delete" in write:
        return ("delete",)
    condition = write.get("currentDocument", {})
    if not condition:
        return ("create", "update")
    return ("create",) if condition.get("exists") is False else ("update",)


def compute_permissions(
    action: str, names: Mapping[str, str], body: Body
) -> Iterator[tuple[str, str]]:
    """Yield the permissions of a call in a project, with the resources. Raise AssertionError for an
    unknown method.
    """
    instance = f"instances/{names.get('name')}"
    match action:
        case "bulkInsert":
            yield from _insert_permissions(
                body["instanceProperties"], body["perInstanceProperties"]
            )
        case "insert":
            yield from _insert_permissions(body, [body["name"]])
        case "listInstances":
            yield "compute.instances.list", ""
        case "listOperations":
            yield from (
                (f"compute.{name}Operations.list", "") for name in ("global", "region", "zone")
            )
        case "getOperation":
            yield f"compute.{names['place'].partition('s/')[0]}Operations.get", ""
        case "getInstance":
            yield "compute.instances.get", instance
        case "deleteInstance":
            yield "compute.instances.delete", instance
        case "getSerialPortOutput":
            yield "compute.instances.getSerialPortOutput", instance
        case _:
            raise AssertionError(f"nobody says which permission {action} needs")


def _insert_permissions(properties: Body, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    permissions = {
        "create": True,
        "setLabels": properties.get("labels"),
        "setMetadata": properties.get("metadata"),
        "setMinCpuPlatform": properties.get("minCpuPlatform"),
        "setServiceAccount": properties.get("serviceAccounts"),
        "setTags": properties.get("tags"),
    }
    disks = [disk.get("initializeParams", {}) for disk in properties.get("disks", ())]
    for name in names:
        yield from (
            (f"compute.instances.{text}", f"instances/{name}")
            for text in permissions
            if permissions[text]
        )
        if disks:
            yield "compute.disks.create", f"disks/{name}"
        if any(disk.get("labels") for disk in disks):
            yield "compute.disks.setLabels", f"disks/{name}"
    if any(disk.get("sourceImage") for disk in disks):
        yield "compute.images.useReadOnly", ""


def subnetwork_permissions(body: Body) -> Iterator[tuple[str, str]]:
    """Yield the subnetwork permissions of a bulk or single insert, with the regions."""
    for interface in body.get("instanceProperties", body).get("networkInterfaces", ()):
        region = interface["subnetwork"].split("/")[-3]
        yield "compute.subnetworks.use", region
        if interface.get("accessConfigs"):
            yield "compute.subnetworks.useExternalIp", region


@contextmanager
def recorded_storage(
    record: PermissionRecord, store: str, account: str, token: str
) -> Iterator[str]:
    """Serve a front of the store that records the requests of `account`. Yield the URL.

    Requests with `token`, without a token, or with the account's signed URLs count as the
    account's. Other tokens belong to instances.
    """

    class Handler(ForwardingHandler):
        def handle_request(self, body: bytes | None) -> None:
            action, bucket, name = asked_action(self.command, self.path, body)
            query = parse_qs(urlsplit(self.path).query)
            is_own = self.headers.get("Authorization") in (None, f"Bearer {token}")
            who = account if is_own else "instance"
            record.note_object(who, action, bucket, name)
            replaces = action == "create" and "ifGenerationMatch" not in query
            if replaces and self.is_there(bucket, name):
                record.note_object(who, "delete", bucket, name)
            self.forward(body)

    handler = type("Handler", (Handler,), {"store": store})
    with serve_requests(handler) as address:
        yield f"http://{address}"
