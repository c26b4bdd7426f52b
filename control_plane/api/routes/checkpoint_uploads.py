"""Routes of uploads, by which a user's files become a checkpoint of a trial."""

import hashlib
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from anyio import to_thread
from fastapi import Depends, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import Field

from control_plane.access.ownership import Action, FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import PageParameters, ServicesParameter, TrialId
from control_plane.api.owned_objects import trial_in_path
from control_plane.api.received_files import received_body
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import API_PATH, Caller, guarded_router, require_role
from control_plane.checkpoint_stores.checkpoint_files import FileDigests, LargeFile, SignedUpload
from control_plane.errors import invalid
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint import Checkpoint
from control_plane.queries.experiment_owners import find_owned_trial
from control_plane.queries.pages import Page, page_from_rows
from control_plane.text_forms import text_form
from control_plane.usecases.checkpoint_uploads import (
    Upload,
    begin_upload,
    find_upload,
    stored_files,
)
from control_plane.usecases.upload_completion import complete_upload
from control_plane.usecases.upload_files import (
    FILE_BYTES_MAX,
    join_parts,
    offer_parts,
    sign_files,
    store_part,
    store_upload_file,
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
    """The trial, and the UUID of the new checkpoint."""

    trial_id: Annotated[int, Field(ge=1, le=10**12 - 1)]
    uuid: Annotated[str, Field(pattern=_UUID_PATTERN)]


def _trial_in_body(body: UploadBody, services: ServicesParameter) -> FindOwned:
    return partial(find_owned_trial, services, body.trial_id)


class UploadAnswer(Answer):
    """An upload of a checkpoint.

    `path` is the checkpoint's folder in the store. `state` is UPLOADING, or the state of a
    checkpoint that is recorded already.
    """

    uuid: str
    trial_id: int
    path: str
    state: str
    cluster_id: str


class UploadedFile(Answer):
    """A file of an upload that is already in the store. `size` is in bytes."""

    path: str
    size: int


class FileBody(RequestBody):
    """A file to upload: the path in the checkpoint, the size in bytes, and the digests."""

    path: FilePath
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)]


class FilesBody(RequestBody):
    """Files to upload."""

    files: Annotated[list[FileBody], Field(min_length=1, max_length=FILES_MAX)]


class FileUpload(Answer):
    """The request that uploads a file. Send the request unchanged within 15 minutes.

    `url` is a whole URL of the store, or a path of this API, which also needs the caller's token.
    """

    path: str
    method: str
    url: str
    headers: dict[str, str]


class FileUploads(Answer):
    """The requests that upload files, in the order of the sent files."""

    uploads: list[FileUpload]


class PartBody(RequestBody):
    """A part of a file: the number, counted from 1, and the MD5 of the part."""

    number: Annotated[int, Field(ge=1)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)]


class LargeFileBody(RequestBody):
    """A file that is uploaded in parts.

    `size` is the size of the whole file in bytes. Some stores refuse content with another MD5 than
    `md5`.
    """

    path: FilePath
    size: Annotated[int, Field(ge=1)]
    md5: Annotated[str, Field(pattern=MD5_PATTERN)] | None = None

    @property
    def file(self) -> LargeFile:
        """The file in the form that checkpoint stores expect. A missing MD5 is ""."""
        return LargeFile(self.path, self.size, self.md5 or "")


class PartsBody(LargeFileBody):
    """Parts of a file to upload. Without parts, the answer only lists the stored parts."""

    parts: Annotated[list[PartBody], Field(max_length=FILES_MAX)] = []


class SentPart(NamedTuple):
    """The part of a file that the body of a request contains."""

    file: LargeFile
    """The whole file, without MD5."""
    number: int
    """The number of the part, counted from 1."""
    md5: str
    """The MD5 of the part in hexadecimal."""


def sent_part(
    path: Annotated[str, Query(min_length=1, max_length=1024)],
    size: Annotated[int, Query(ge=1)],
    number: Annotated[int, Query(ge=1)],
    md5: Annotated[str, Query(pattern=MD5_PATTERN)],
) -> SentPart:
    """Return the part that the query parameters describe.

    `path` and `size` describe the whole file. `number` and `md5` describe the part.
    """
    return SentPart(LargeFile(path, size), number, md5)


class PartUpload(Answer):
    """The request that uploads a part. Send the request unchanged within 15 minutes.

    `url` is a whole URL of the store, or a path of this API, which also needs the caller's token.
    """

    number: int
    method: str
    url: str
    headers: dict[str, str]


class PartUploads(Answer):
    """The answer to an offer of parts, with the requests that upload the parts.

    All parts but the last have `part_bytes` bytes. `part_bytes` is null, and the lists are empty,
    if the file must be sent whole. With `in_order`, a part must be sent after all earlier parts.
    `stored` has the numbers of the stored parts. `uploads` is in the order of the sent parts.
    """

    part_bytes: int | None
    in_order: bool
    stored: list[int]
    uploads: list[PartUpload]


class CompletionBody(RequestBody):
    """The digest of the uploaded manifest."""

    manifest_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


@router.post(_PATH)
@require_role(*USER_ROLES, changes=_trial_in_body, action=Action.UPLOAD)
def begin(body: UploadBody, services: ServicesParameter) -> UploadAnswer:
    """Begin the upload of a checkpoint to a trial, or resume the upload.

    The checkpoint is not listed before the upload is complete. The cluster later deletes the files
    of an upload that is never completed. Nothing changes if the checkpoint is already recorded. The
    answer has the checkpoint's folder and state, but not the files that are already in the store.
    Errors: `not_found` for an unknown trial. `forbidden` for another user's experiment. `conflict`
    if the experiment is being deleted or the store cannot be opened.
    """
    upload = begin_upload(services, body.trial_id, body.uuid)
    state = "UPLOADING" if upload.state is None else str(upload.state)
    return UploadAnswer(
        uuid=upload.uuid,
        trial_id=body.trial_id,
        path=upload.path,
        state=state,
        cluster_id=services.cluster_id,
    )


@router.get(f"{_PATH}/{{trial_id}}/{{uuid}}/files")
@require_role(*USER_ROLES, changes=trial_in_path, action=Action.UPLOAD)
def list_uploaded(
    trial_id: TrialId,
    uuid: UploadUuid,
    services: ServicesParameter,
    page: PageParameters,
) -> Page[UploadedFile]:
    """List the files of an upload that are already in the store, by path.

    The list is empty before the first file. Errors: `not_found` for an unknown trial. `forbidden`
    for another user's experiment. `conflict` if the checkpoint is already recorded, the experiment
    is being deleted, or the store cannot be opened. `unavailable` if the store does not answer.
    """
    after = page.start_after(_LIST, (int,))
    first = 0 if after is None else max(int(after[0]) + 1, 0)
    files = stored_files(services, find_upload(services, trial_id, uuid))
    places = list(enumerate(files))[first : first + page.limit + 1]
    return page_from_rows(
        places,
        page,
        _LIST,
        item=lambda place: UploadedFile(path=place[1][0], size=place[1][1]),
        position=lambda place: (place[0],),
    )


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/files")
@require_role(*USER_ROLES, changes=trial_in_path, action=Action.UPLOAD)
def offer_files(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: FilesBody,
    services: ServicesParameter,
) -> FileUploads:
    """Return the requests that upload whole files, at most 100 at a time.

    A file for which the store signs no request goes to this API. Errors: `not_found` for an unknown
    trial. `forbidden` for another user's experiment. `invalid` for a wrong path. `too_large` for a
    file that must be sent in parts, or of more than 5 TiB. `conflict` if the checkpoint is already
    recorded, the experiment is being deleted, or the store cannot be opened. `unavailable` if the
    store does not answer.
    """
    upload = find_upload(services, trial_id, uuid)
    files = [(file.path, FileDigests(file.size, file.sha256, file.md5)) for file in body.files]
    signed = sign_files(services, upload, files)
    own = f"{API_PATH}{_PATH}/{trial_id}/{uuid}/content"
    uploads = [
        _signed_request(path, signed_upload) if signed_upload else _own_request(path, digests, own)
        for (path, digests), signed_upload in zip(files, signed, strict=True)
    ]
    return FileUploads(uploads=uploads)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/parts")
@require_role(*USER_ROLES, changes=trial_in_path, action=Action.UPLOAD)
def offer_file_parts(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: PartsBody,
    services: ServicesParameter,
) -> PartUploads:
    """Return the requests that upload parts of a large file, at most 100, and list stored parts.

    The first call begins the upload of the file, unless the store accepts only whole files. A part
    for which the store signs no request goes to this API. Errors: `not_found` for an unknown trial.
    `forbidden` for another user's experiment. `invalid` for a wrong path or part number.
    `too_large` for a file of more than 5 TiB. `conflict` if the checkpoint is already recorded, the
    stored parts belong to another size, the experiment is being deleted, or the store cannot be
    opened. `unavailable` if the store does not answer.
    """
    upload = find_upload(services, trial_id, uuid)
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
@require_role(
    *USER_ROLES,
    body_bytes_max=signed_part_bytes(FILE_BYTES_MAX),
    changes=trial_in_path,
    action=Action.UPLOAD,
)
async def store_part_content(
    trial_id: TrialId,
    uuid: UploadUuid,
    part: Annotated[SentPart, Depends(sent_part)],
    request: Request,
    services: ServicesParameter,
) -> Response:
    """Store the part of a file that the body contains, for a store that signs no requests.

    Storing a part again replaces the earlier copy. Errors: `not_found` for an unknown trial.
    `forbidden` for another user's experiment. `invalid` if the body has another MD5 or size than
    the part, or for a wrong path or part number, or if the store accepts only whole files.
    `too_large` for a body above the largest part, or a file of more than 5 TiB. `conflict` if the
    checkpoint is already recorded, the experiment is being deleted, or the store cannot be opened
    or accepts parts only by signed requests. `unavailable` if the store does not answer.
    """
    upload: Upload = await to_thread.run_sync(find_upload, services, trial_id, uuid)
    async with received_body(request, _new_md5) as (source, received):
        if received != part.md5:
            raise invalid("", "the body's MD5 differs from the one declared; send it again")
        named = (part.number, part.md5)
        await to_thread.run_sync(store_part, services, upload, part.file, named, source)
    return Response(status_code=204)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/parts/join", status_code=204)
@require_role(*USER_ROLES, changes=trial_in_path, action=Action.UPLOAD)
def join(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: LargeFileBody,
    services: ServicesParameter,
) -> Response:
    """Join the stored parts to a large file. All parts must be stored.

    Joining again is not an error. Errors: `not_found` for an unknown trial. `forbidden` for another
    user's experiment. `invalid` for a wrong path, or if the store accepts only whole files.
    `too_large` for a file of more than 5 TiB. `conflict` if the stored parts do not fit the file,
    the checkpoint is already recorded, the experiment is being deleted, or the store cannot be
    opened. `unavailable` if the store does not answer.
    """
    upload = find_upload(services, trial_id, uuid)
    join_parts(services, upload, body.file)
    return Response(status_code=204)


@router.put(f"{_PATH}/{{trial_id}}/{{uuid}}/content", status_code=204)
@require_role(
    *USER_ROLES, body_bytes_max=FILE_BYTES_MAX, changes=trial_in_path, action=Action.UPLOAD
)
async def store_content(
    trial_id: TrialId,
    uuid: UploadUuid,
    path: Annotated[str, Query(min_length=1, max_length=1024)],
    sha256: Annotated[str, Query(pattern=SHA256_PATTERN)],
    request: Request,
    services: ServicesParameter,
) -> Response:
    """Store the file that the body contains, for a store that signs no requests.

    Nothing changes if the store already has a file at `path`. Errors: `not_found` for an unknown
    trial. `forbidden` for another user's experiment. `invalid` for a wrong path, or if the body's
    SHA-256 is not `sha256`. `too_large` for a body of more than 5 TiB. `conflict` if the checkpoint
    is already recorded, the experiment is being deleted, or the store cannot be opened.
    `unavailable` if the store does not answer.
    """
    upload: Upload = await to_thread.run_sync(find_upload, services, trial_id, uuid)
    async with received_body(request) as (source, received):
        if received != sha256:
            raise invalid("", "the body's SHA-256 differs from the one declared; send it again")
        await to_thread.run_sync(store_upload_file, services, upload, path, source)
    return Response(status_code=204)


@router.post(f"{_PATH}/{{trial_id}}/{{uuid}}/complete")
@require_role(*USER_ROLES, changes=trial_in_path, action=Action.UPLOAD)
def complete(
    trial_id: TrialId,
    uuid: UploadUuid,
    body: CompletionBody,
    caller: Caller,
    services: ServicesParameter,
) -> Checkpoint:
    """Check that every file of the manifest is stored, and record the checkpoint.

    Return the checkpoint, unchanged if it is already recorded as complete. Errors: `not_found` for
    an unknown trial. `forbidden` for another user's experiment. `invalid` if the manifest has
    another digest, is wrong, or belongs to another upload. `conflict` if a file or the manifest is
    missing, the checkpoint was deleted or belongs to another trial, or the experiment is being
    deleted. `conflict` also if the experiment changed in the meantime, or the store cannot be
    opened. `unavailable` if the store does not answer.
    """
    upload = find_upload(services, trial_id, uuid)
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
