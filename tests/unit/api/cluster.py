"""An application over a directory store, four tokens and a clock that stands still."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, Field

from control_plane.api.app import create_app
from control_plane.api.auth import Principal, Role, StaticTokens, digest_of
from control_plane.api.guarded import Caller, guarded_router, needs, open_to_all
from control_plane.api.services import Services
from control_plane.api.signing import Signer
from control_plane.objects.directory import DirectoryStore
from tests.unit.api.exchange import HOST

NOW_MS = 1_800_000_000_000
TOKENS = {role: f"dct_test-token-of-{role.value}" for role in Role}


@dataclass(frozen=True)
class Cluster:
    app: FastAPI
    objects: DirectoryStore
    signer: Signer


def cluster(root: Path) -> Cluster:
    signer = Signer(b"s" * 32)
    objects = DirectoryStore(root, signer)
    principals = {
        digest_of(token): Principal(f"{role.value}-1", role) for role, token in TOKENS.items()
    }
    services = Services(
        tokens=StaticTokens(principals),
        objects=objects,
        signer=signer,
        now_ms=lambda: NOW_MS,
        hosts=frozenset({HOST, "127.0.0.1", "[::1]"}),
    )
    return Cluster(create_app(services), objects, signer)


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
