"""An application on a real table, a directory store, four tokens and a clock that stands still."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured
from control_plane.agents.identity import Witness
from control_plane.agents.logs import TrialLogs
from control_plane.agents.segments import stored
from control_plane.agents.service import AgentService
from control_plane.agents.spec import Checkpoints, spec_builder
from control_plane.agents.storage_access import Vendor
from control_plane.api.app import create_app
from control_plane.api.archives import model_code_key
from control_plane.api.auth import Principal, Role, StaticTokens, digest_of
from control_plane.api.guarded import Caller, guarded_router, needs, open_to_all
from control_plane.api.services import Services
from control_plane.api.signing import Signer
from control_plane.api.token_table import TableTokens
from control_plane.api.waiting import WaitingRoom
from control_plane.dispatch.engine import Engine
from control_plane.objects.directory import DirectoryStore
from control_plane.state.sqlite import SqliteTable
from tests.unit.api.exchange import HOST, Answer, call

NOW_MS = 1_800_000_000_000
TOKENS = {role: f"dct_test-token-of-{role.value}" for role in Role}
SUBJECTS = {Role.JOIN: "default", Role.AGENT: "someone-else"}
V1 = "/api/v1"


@dataclass
class Clock:
    """Stands still until a test moves it."""

    ms: int = NOW_MS

    def __call__(self) -> int:
        return self.ms


@dataclass(frozen=True)
class Cluster:
    app: FastAPI
    objects: DirectoryStore
    signer: Signer
    services: Services
    waiting: WaitingRoom
    clock: Clock

    @property
    def checkpoints(self) -> Path:
        """The folder of those whose configuration names no place."""
        assert isinstance(self.services.checkpoints, Path)
        return self.services.checkpoints

    def get(self, path: str) -> Answer:
        """Asked by the user."""
        return call(self.app, "GET", V1 + path, token=TOKENS[Role.USER])

    def post(self, path: str, content: object, key: str | None = None) -> Answer:
        """Asked by the user."""
        headers = [] if key is None else [("idempotency-key", key)]
        token = TOKENS[Role.USER]
        return call(self.app, "POST", V1 + path, token=token, headers=headers, content=content)

    def store_code(self) -> str:
        """Model code that is there, by its digest."""
        content = archive()
        digest = hashlib.sha256(content).hexdigest()
        self.objects.put(model_code_key(digest), content)
        return digest

    def create(self, config: str, key: str | None = None, **fields: Any) -> Answer:
        body = {"config": config, "model_code": self.store_code(), **fields}
        return self.post("/experiments", body, key)


def cluster(
    root: Path,
    providers: frozenset[str] = frozenset(),
    witness: Witness | None = None,
    vendor: Vendor | None = None,
    checkpoints: Checkpoints | None = None,
) -> Cluster:
    signer = Signer(b"s" * 32)
    objects = DirectoryStore(root / "objects", signer)
    principals = {
        digest_of(token): Principal(f"{role.value}-1", role, SUBJECTS.get(role, ""))
        for role, token in TOKENS.items()
    }
    table = SqliteTable(root / "state.db", synchronous="NORMAL")
    clock = Clock()
    engine = Engine(table, clock)
    waiting = WaitingRoom()
    engine.on_commit = waiting.changed
    checkpoints = checkpoints or root / "checkpoints"
    services = Services(
        tokens=TableTokens(table, StaticTokens(principals), clock),
        objects=objects,
        signer=signer,
        now_ms=clock,
        hosts=frozenset({HOST, "127.0.0.1", "[::1]"}),
        engine=engine,
        agents=AgentService(
            engine,
            spec_builder("cluster-1", checkpoints),
            TrialLogs(table, objects).store,
            partial(stored, objects),
        ),
        cluster_id="cluster-1",
        version="1.2.3",
        checkpoints=checkpoints,
        waiting=waiting,
        providers=providers,
        witness=witness,
        vendor=vendor,
    )
    engine.command(addresses.pool("default"), PoolConfigured("default"))
    return Cluster(create_app(services), objects, signer, services, waiting, clock)


@cache
def archive(name: str = "model.py", content: bytes = b"print(1)\n") -> bytes:
    """The same bytes whenever it is packed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


class Note(BaseModel):
    text: Annotated[str, Field(max_length=50)]


def extended(root: Path) -> FastAPI:
    """The application with one more noun, registered as any other is."""
    router = guarded_router("notes")

    @router.post("/notes")
    @needs(Role.USER, body_bytes_max=100)
    def add(note: Note, caller: Caller) -> dict[str, str]:
        return {"by": caller.user, "text": note.text}

    @router.get("/broken")
    @open_to_all
    def broken() -> None:
        raise RuntimeError("canary dct_secret")

    app = cluster(root).app
    app.router.routes.extend(router.routes)
    return app
