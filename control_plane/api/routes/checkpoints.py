"""Checkpoints, by any unique beginning of their UUID, and their files."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel

from control_plane.api.checkpoint_files import checkpoint_folder, file_url
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.services import Given
from control_plane.api.views import checkpoint as checkpoints

router = guarded_router("checkpoints")

Prefix = Annotated[str, Path(max_length=36)]


class File(BaseModel):
    """`url` may be fetched without a token for 15 minutes."""

    path: str
    size: int
    sha256: str
    url: str


class Files(BaseModel):
    items: list[File]


@router.get("/checkpoints/{uuid}")
@needs(*PEOPLE)
def describe(uuid: Prefix, services: Given) -> checkpoints.Checkpoint:
    return checkpoints.checkpoint(services, uuid)


@router.get("/checkpoints/{uuid}/files")
@needs(*PEOPLE)
def list_files(uuid: Prefix, services: Given) -> Files:
    folder = checkpoint_folder(services, uuid)
    items = [
        File(path=file.path, size=file.size, sha256=file.sha256, url=file_url(services, folder, n))
        for n, file in enumerate(folder.files)
    ]
    return Files(items=items)
