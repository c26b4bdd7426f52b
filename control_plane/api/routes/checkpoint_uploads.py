"""Routes of uploads: a user's files become a checkpoint of a trial."""

import hashlib
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from anyio import to_thread
from fastapi import Depends, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import Field

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import PageParameters, ServicesParameter
from control_plane.api.received_files import received_body
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import API_PATH, Caller, guarded_router, require_role
from control_plane.api.routes.trials import TrialId
from control_plane.checkpoint_stores.checkpoint_files import FileDigests, LargeFile, SignedUpload
from control_plane.errors import invalid
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint import Checkpoint
from control_plane.queries.pages import Page, page_from_rows
from control_plane.text_forms import text_form
from control_plane.usecases.checkpoint_uploads import (
    FILE_BYTES_MAX,
    Upload,
    begin_upload,
    complete_upload,
    find_upload,
    join_parts,
    offer_parts,
    sign_files,
    store_part,
    store_upload_file,
    stored_files,
)
from detcloud.shared.upload_parts import signed_part_bytes

router = guarded_router("checkpoint-uploads")

_LIST = "checkpoint-upload-files"
_PATH = "/checkpoint-uploads"
_UUID_PATTERN = text_form(
    r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "a UUID of 36 characters in lower case"
)
MD5_PATTERN = text_form(r"^[0-9a-f]{32}$", "an MD5: 32 hexadecimal digits in lower case")
FILES_MAX = 100

UploadUuid = Annotated[str, PathParameter(pattern=_UUID_PATTERN)]
FilePath = Annotated[str, Field(min_length=1, max_length=1024)]


class UploadBody(RequestBody):
    """The trial, and the UUID of the checkpoint to be."""

    trial_id: Annotated[int, Field(ge=1, le=10**12 - 1)]
    uuid: Annotated[str, Field(pattern=_UUID_PATTERN)]


class UploadAnswer(Answer):
    """An upload. `state` is UPLOADING, or that of the checkpoint where it is recorded already."""

    uuid: str
    trial_id: int
    path: str
    state: str
    cluster_id: str


class UploadedFile(Answer):
    """A file of an upload that is in the store."""

    path: str
    size: int


class FileBody(RequestBody):
    """A file that the caller has."""

    path: FilePath
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)]


class FilesBody(RequestBody):
    """Files to be uploaded."""

    files: Annotated[list[FileBody], Field(min_length=1, max_length=FILES_MAX)]


class FileUpload(Answer):
    """The request that uploads a file, to be sent as it is within 15 minutes; `url` may be a path
    here, for which the token is needed, or a whole URL.
    """

    path: str
    method: str
    url: str
    headers: dict[str, str]


class FileUploads(Answer):
    """The requests that upload files, in the order of the files."""

    uploads: list[FileUpload]


class PartBody(RequestBody):
    """A part of a file: its number, from 1, and its digest."""

    number: Annotated[int, Field(ge=1)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)]


class LargeFileBody(RequestBody):
    """A file that is uploaded in parts; some stores refuse another content than that of `md5`."""

    path: FilePath
    size: Annotated[int, Field(ge=1)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)] | None = None

    @property
    def file(self) -> LargeFile:
        """The file as stores take it."""
        return LargeFile(self.path, self.size, self.md5 or "")


class PartsBody(LargeFileBody):
    """Parts of a file to upload; without any, the answer only lists the stored parts."""

    parts: Annotated[list[PartBody], Field(max_length=FILES_MAX)] = []


class SentPart(NamedTuple):
    """The part that is a request's body: of which file, its number and its MD5."""

    file: LargeFile
    number: int
    md5: str


def sent_part(
    path: Annotated[str, Query(min_length=1, max_length=1024)],
    size: Annotated[int, Query(ge=1)],
    number: Annotated[int, Query(ge=1)],
    md5: Annotated[str, Query(pattern=MD5_PATTERN)],
) -> SentPart:
    """The part that the query names."""
    return SentPart(LargeFile(path, size), number, md5)


class PartUpload(Answer):
    """The request that uploads a part, to be sent as it is within 15 minutes; `url` may be a path
    here, as for files.
    """

    number: int
    method: str
    url: str
    headers: dict[str, str]


class PartUploads(Answer):
    """All parts but the last have `part_bytes`, null where the file is to be sent whole; `stored`
    has the numbers of those that are there. With `in_order` a part is taken after those before it.
    """

    part_bytes: int | None
    in_order: bool
    stored: list[int]
    uploads: list[PartUpload]


class CompletionBody(RequestBody):
    """The digest of the manifest that was uploaded."""

    manifest_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


@router.post(_PATH)
@require_role(*USER_ROLES)
def begin(body: UploadBody, caller: Caller, services: ServicesParameter) -> UploadAnswer:
    """Begin an upload or go on with it, which changes nothing else."""
    upload = begin_upload(services, body.trial_id, body.uuid, caller)
    state = "UPLOADING" if upload.state is None else str(upload.state)
    return UploadAnswer(
        uuid=upload.uuid,
        trial_id=body.trial_id,
        path=upload.path,
        state=state,
        cluster_id=services.cluster_id,
    )


@router.get(f"{_PATH}/{{trial_id}}/{{uuid}}/files")
@require_role(*USER_ROLES)
def list_uploaded(
    trial_id: TrialId,
    uuid: UploadUuid,
    caller: Caller,
    services: ServicesParameter,
    page: PageParameters,
) -> Page[UploadedFile]:
    """List the uploaded files that are in the store, by path."""
    after = page.start_after(_LIST, (int,))
    first = 0 if after is None else max(int(after[0]) + 1, 0)
    files = stored_files(services, find_upload(services, trial_id, uuid, caller))
    places = list(enumerate(files))[first : first + page.limit + 1]
    return page_from_rows(
        places,
        page,
        _LIST,
        item=lambda place: UploadedFile(path=place[1][0], size=place[1][1]),
        position=lambda place: (place[0],),
    )


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/files")
@require_role(*USER_ROLES)
def offer_files(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: FilesBody,
    caller: Caller,
    services: ServicesParameter,
) -> FileUploads:
    """Say how to upload files, at most 100 at a time."""
    upload = find_upload(services, trial_id, uuid, caller)
    files = [(file.path, FileDigests(file.size, file.sha256, file.md5)) for file in body.files]
    signed = sign_files(services, upload, files)
    own = f"{API_PATH}{_PATH}/{trial_id}/{uuid}/content"
    uploads = [
        _signed_request(path, signed_upload) if signed_upload else _own_request(path, digests, own)
        for (path, digests), signed_upload in zip(files, signed, strict=True)
    ]
    return FileUploads(uploads=uploads)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/parts")
@require_role(*USER_ROLES)
def offer_file_parts(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: PartsBody,
    caller: Caller,
    services: ServicesParameter,
) -> PartUploads:
    """Describe how to upload parts of a large file, at most 100 at a time, and list stored ones."""
    upload = find_upload(services, trial_id, uuid, caller)
    parts = [(part_body.number, part_body.md5) for part_body in body.parts]
    offered = offer_parts(services, upload, body.file, parts)
    if offered is None:
        return PartUploads(part_bytes=None, in_order=False, stored=[], uploads=[])
    own = f"{API_PATH}{_PATH}/{trial_id}/{uuid}/parts/content"
    uploads = [
        _part_request(body.file, part, signed, own)
        for part, signed in zip(parts, offered.uploads, strict=True)
    ]
    return PartUploads(
        part_bytes=offered.part_bytes,
        in_order=offered.is_in_order,
        stored=offered.stored,
        uploads=uploads,
    )


@router.put(f"{_PATH}/{{trial_id}}/{{uuid}}/parts/content", status_code=204)
@require_role(*USER_ROLES, body_bytes_max=signed_part_bytes(FILE_BYTES_MAX))
async def store_part_content(
    trial_id: TrialId,
    uuid: UploadUuid,
    part: Annotated[SentPart, Depends(sent_part)],
    request: Request,
    caller: Caller,
    services: ServicesParameter,
) -> Response:
    """Store a part for which the store signs no upload, if nothing is wrong with it."""
    upload: Upload = await to_thread.run_sync(find_upload, services, trial_id, uuid, caller)
    async with received_body(request, _new_md5) as (source, received):
        if received != part.md5:
            raise invalid("", "the body's MD5 differs from the one declared; send it again")
        named = (part.number, part.md5)
        await to_thread.run_sync(store_part, services, upload, part.file, named, source)
    return Response(status_code=204)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/parts/join", status_code=204)
@require_role(*USER_ROLES)
def join(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: LargeFileBody,
    caller: Caller,
    services: ServicesParameter,
) -> Response:
    """Make a large file of its parts, which are all there; again is no error."""
    upload = find_upload(services, trial_id, uuid, caller)
    join_parts(services, upload, body.file)
    return Response(status_code=204)


@router.put(f"{_PATH}/{{trial_id}}/{{uuid}}/content", status_code=204)
@require_role(*USER_ROLES, body_bytes_max=FILE_BYTES_MAX)
async def store_content(
    trial_id: TrialId,
    uuid: UploadUuid,
    path: Annotated[str, Query(min_length=1, max_length=1024)],
    sha256: Annotated[str, Query(pattern=SHA256_PATTERN)],
    request: Request,
    caller: Caller,
    services: ServicesParameter,
) -> Response:
    """Store a file for which the store signs no upload, if nothing is wrong with it."""
    upload: Upload = await to_thread.run_sync(find_upload, services, trial_id, uuid, caller)
    async with received_body(request) as (source, received):
        if received != sha256:
            raise invalid("", "the body's SHA-256 differs from the one declared; send it again")
        await to_thread.run_sync(store_upload_file, services, upload, path, source)
    return Response(status_code=204)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/complete")
@require_role(*USER_ROLES)
def complete(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: CompletionBody,
    caller: Caller,
    services: ServicesParameter,
) -> Checkpoint:
    """Record the checkpoint, whose files are all there."""
    upload = find_upload(services, trial_id, uuid, caller)
    return complete_upload(services, upload, body.manifest_sha256, caller)


def _signed_request(path: str, signed: SignedUpload) -> FileUpload:
    return FileUpload(path=path, method="PUT", url=signed.url, headers=dict(signed.headers))


def _own_request(path: str, digests: FileDigests, own: str) -> FileUpload:
    url = f"{own}?{urlencode({'path': path, 'sha256': digests.sha256})}"
    return FileUpload(path=path, method="PUT", url=url, headers={})


def _part_request(
    file: LargeFile, part: tuple[int, str], signed: SignedUpload | None, own: str
) -> PartUpload:
    number, md5 = part
    if signed is not None:
        headers = dict(signed.headers)
        return PartUpload(number=number, method="PUT", url=signed.url, headers=headers)
    query = urlencode({"path": file.path, "size": file.size, "number": number, "md5": md5})
    return PartUpload(number=number, method="PUT", url=f"{own}?{query}", headers={})


def _new_md5() -> Any:
    return hashlib.md5(usedforsecurity=False)
