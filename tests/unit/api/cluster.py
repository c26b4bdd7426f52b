"""The API of a cluster by the real builder, with a token for each role and a stopped clock."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import StaticTokens, token_digest
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.long_polls import LongPollRegistry
from control_plane.api.app import create_app
from control_plane.api.owned_objects import only_own
from control_plane.api.route_guards import Caller, allow_anyone, guarded_router, require_role
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.fleet.records import FleetRow, InstanceRow
from control_plane.fleet.rows import FLEETS, encode_row, instance_key
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import model_code_key
from control_plane.query_limits import QueryLimits
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put
from lambdas import builder
from tests.unit.api.adapters import NOW_MS as NOW_MS
from tests.unit.api.adapters import ApiAdapters, StoppedClock
from tests.unit.api.exchange import Answer, call

TOKENS = {role: f"dct_test-token-of-{role.value}" for role in Role}
SUBJECTS = {Role.JOIN: "default", Role.AGENT: "someone-else"}
V1 = "/api/v1"


@dataclass(frozen=True)
class Cluster:
    app: FastAPI
    objects: DirectoryObjectStore
    signer: HmacUrlSigner
    services: Services
    long_polls: LongPollRegistry
    clock: StoppedClock

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints of experiments without a configured `checkpoint_storage`."""
        assert isinstance(self.services.checkpoints, Directory)
        return Path(self.services.checkpoints.container_path)

    def get(self, path: str) -> Answer:
        """Send GET as the user."""
        return call(self.app, "GET", V1 + path, token=TOKENS[Role.USER])

    def post(self, path: str, content: object, key: str | None = None) -> Answer:
        """Send POST as the user, with `key` as the idempotency key."""
        headers = [] if key is None else [("idempotency-key", key)]
        token = TOKENS[Role.USER]
        return call(self.app, "POST", V1 + path, token=token, headers=headers, content=content)

    def store_code(self) -> str:
        """Store model code with the files that the tests' entrypoints name; return the digest."""
        content = archive_of(*((name, b"print(1)\n") for name in ("model_def.py", "train.py")))
        digest = hashlib.sha256(content).hexdigest()
        self.objects.put(model_code_key(digest), content)
        return digest

    def create(self, config: str, key: str | None = None, **fields: Any) -> Answer:
        body = {"config": config, "model_code": self.store_code(), **fields}
        return self.post("/experiments", body, key)


def role_tokens() -> StaticTokens:
    """Return the tokens TOKENS, each of a user with the role."""
    return StaticTokens(
        {
            token_digest(token): Principal(f"{role.value}-1", role, SUBJECTS.get(role, ""))
            for role, token in TOKENS.items()
        }
    )


def build_cluster(root: Path, providers: frozenset[str] = frozenset(), **parts: Any) -> Cluster:
    """Build a cluster with a pool `default`, and its API with a token for each role.

    Args:
        root: the folder of table, objects and checkpoints.
        providers: the provider types that the API accepts for pools.
        parts: further arguments of `ApiAdapters`.
    """
    adapters = ApiAdapters(root, providers, **parts)
    app = builder.Cluster(adapters).build_app(role_tokens())
    services: Services = app.state.services
    services.engine.execute_command(addresses.pool("default"), PoolConfigured("default"))
    return Cluster(
        app,
        adapters.object_store,
        adapters.url_signer,
        services,
        adapters.long_polls,
        adapters.stopped_clock,
    )


def limit_queries(cluster: Cluster, **limits: Any) -> Cluster:
    """Return the cluster with an API that has these `QueryLimits`."""
    services = replace(cluster.services, limits=QueryLimits(**limits))
    return replace(cluster, services=services, app=create_app(services))


def put_instance(cluster: Cluster, row: InstanceRow, provider_type: str) -> None:
    """Write the row of an instance and the fleet row of the pool with this provider type."""
    fleet = FleetRow(row.pool, json.dumps({"kind": provider_type}))
    bodies = {Key(FLEETS, row.pool): encode_row(fleet), instance_key(row): encode_row(row)}
    puts = [Put(key, 1, body, Expect.ANYTHING) for key, body in bodies.items()]
    cluster.services.table.commit(puts)


@cache
def archive(name: str = "model.py", content: bytes = b"print(1)\n") -> bytes:
    """Return an archive with a single file; equal arguments give equal bytes."""
    return archive_of((name, content))


def archive_of(*entries: tuple[str | tarfile.TarInfo, bytes]) -> bytes:
    """Pack entries into an archive without any check."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for entry, content in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


class Note(BaseModel):
    text: Annotated[str, Field(max_length=50)]


def build_app_with_notes(root: Path) -> FastAPI:
    """Return an application with a further noun, `notes`, registered like built-in nouns."""
    router = guarded_router("notes")

    @router.post("/notes")
    @require_role(Role.USER, body_bytes_max=100, changes=only_own)
    def add(note: Note, caller: Caller) -> dict[str, str]:
        return {"by": caller.user, "text": note.text}

    @router.get("/broken")
    @allow_anyone
    def raise_canary_error() -> None:
        raise RuntimeError("canary dct_secret")

    app = build_cluster(root).app
    app.router.routes.extend(router.routes)
    return app
