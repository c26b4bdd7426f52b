"""The files of a user's checkpoint upload: signed requests, parts, and files sent to the API."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from control_plane.checkpoint_gc.upload_sessions import UploadSessions
from control_plane.checkpoint_stores.checkpoint_files import (
    CheckpointFiles,
    FileDigests,
    LargeFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.queries.checkpoint_files import store_error
from control_plane.services import Services
from control_plane.usecases.checkpoint_uploads import Upload, open_store
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.upload_parts import PartSizes

# The largest object in S3 and in Google Cloud Storage.
FILE_BYTES_MAX = 5 << 40


@dataclass(frozen=True)
class OfferedParts:
    """How a client uploads a file in parts."""

    part_bytes: int
    """The size of each part; the last part may be shorter."""
    is_in_order: bool
    """Whether the parts must be sent one after another."""
    stored: list[int]
    """The numbers of the parts that are already stored."""
    uploads: list[SignedUpload | None]
    """The signed request for each requested part; None for a part to send to the API."""


def sign_files(
    services: Services, upload: Upload, files: Iterable[tuple[str, FileDigests]]
) -> list[SignedUpload | None]:
    """Return a signed PUT request for each file, which uploads the whole file to the store.

    A request is valid for VALIDITY_MS_MAX. An item is None if the store signs no uploads: then the
    client sends the file to the API. Nothing is written.

    Args:
        services: the services with the state table.
        upload: the upload.
        files: the path below the checkpoint's folder, and the digests, of each file.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, for a file that exceeds FILE_BYTES_MAX or the
            store's limit of whole files; unavailable, if the store does not answer.
    """
    store = open_store(services, upload)
    signed = []
    for path, digests in files:
        _check_file(path, digests.size)
        place = f"{upload.path}/{path}"
        large = LargeFile(place, digests.size, digests.md5)
        _check_whole(path, digests.size, _open_parts(services, upload, store, large))
        try:
            signed.append(store.sign_upload(place, VALIDITY_MS_MAX // 1000, digests))
        except OSError as error:
            raise store_error(error) from None
    return signed


def offer_parts(
    services: Services, upload: Upload, file: LargeFile, parts: Sequence[tuple[int, str]]
) -> OfferedParts | None:
    """Begin or resume the upload of a file in parts, and return how to upload the parts.

    The store begins the upload at the first call; a store with upload sessions keeps the session in
    a row of the trial. Return None, and begin nothing, if the store accepts only whole files.

    Args:
        services: the services with the state table.
        upload: the upload.
        file: the file; its path is relative to the checkpoint's folder.
        parts: the parts to sign, each the number, counted from 1, and the MD5.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded, the store cannot be opened,
            or the store has other parts of the file. invalid, for a wrong path or a number that the
            file lacks. too_large, for a file above FILE_BYTES_MAX. unavailable, if the store does
            not answer.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        return None
    sizes = opened.sizes
    for number, _ in parts:
        _check_part(file.path, number, sizes)
    seconds = VALIDITY_MS_MAX // 1000
    try:
        stored = opened.stored_parts()
        signed = [opened.sign_part(*part, seconds) for part in parts]
    except OSError as error:
        raise store_error(error) from None
    uploads = [None if item is None else SignedUpload(*item) for item in signed]
    return OfferedParts(sizes.part_bytes, opened.is_in_order, stored, uploads)


def store_part(
    services: Services, upload: Upload, file: LargeFile, part: tuple[int, str], source: Path
) -> None:
    """Store a part that the client sent to the API, replacing an earlier copy of the part.

    Args:
        services: the services with the state table.
        upload: the upload.
        file: the file; its path is relative to the checkpoint's folder.
        part: the number of the part, counted from 1, and the MD5, which the caller has compared.
        source: the local file with the part's content.

    Raises:
        RequestError: invalid, for a wrong path or number, a wrong size of the content, or a store
            that accepts only whole files. conflict, if the checkpoint is already recorded, the
            store cannot be opened, or accepts parts only by signed requests. too_large, for a file
            above FILE_BYTES_MAX. unavailable, if the store does not answer.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store accepts only whole files: send the file in one request")
    number, md5 = part
    _check_part(file.path, number, opened.sizes)
    size, expected = source.stat().st_size, opened.sizes.size_of(number)
    if size != expected:
        raise invalid("", f"the body has {size} bytes, and part {number} has {expected}")
    try:
        opened.store_part(number, md5, str(source))
    except OSError as error:
        raise store_error(error) from None


def join_parts(services: Services, upload: Upload, file: LargeFile) -> None:
    """Join the stored parts to the file, which then exists in the store.

    Joining again is not an error.

    Raises:
        RequestError: conflict, if a part is missing, the joined file has another size or MD5, the
            checkpoint is already recorded, or the store cannot be opened. invalid, for a wrong
            path, or if the store accepts only whole files. too_large, for a file above
            FILE_BYTES_MAX. unavailable, if the store does not answer.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store accepts only whole files: send the file in one request")
    try:
        opened.join()
    except OSError as error:
        raise store_error(error) from None


def store_upload_file(services: Services, upload: Upload, path: str, source: Path) -> None:
    """Store a whole file that the client sent to the API.

    Do nothing if the store has a file at the path.

    `path` is relative to the checkpoint's folder. `source` is the local file with the content.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, above FILE_BYTES_MAX; unavailable, if the store
            does not answer.
    """
    _check_file(path, source.stat().st_size)
    try:
        open_store(services, upload).store_file(f"{upload.path}/{path}", str(source))
    except OSError as error:
        raise store_error(error) from None


def _check_file(path: str, size: int) -> None:
    """Check the path and size of an uploaded file.

    Raises:
        RequestError: invalid, if the path is not a safe relative path; too_large, above
            FILE_BYTES_MAX.
    """
    try:
        check_name(path)
    except ArchiveInvalid as error:
        raise invalid("path", error.reason) from None
    if size > FILE_BYTES_MAX:
        text = f"{path} has {size} bytes; the limit of a file is {FILE_BYTES_MAX}"
        raise RequestError(Code.TOO_LARGE, text)


def _open_file_parts(services: Services, upload: Upload, file: LargeFile) -> PartsUpload | None:
    """Check the path and size of a file, and open the upload in parts; begin nothing in the store.

    Return None if the store accepts only whole files.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, for a file above FILE_BYTES_MAX; unavailable, if
            the store does not answer.
    """
    _check_file(file.path, file.size)
    place = LargeFile(f"{upload.path}/{file.path}", file.size, file.md5)
    return _open_parts(services, upload, open_store(services, upload), place)


def _open_parts(
    services: Services, upload: Upload, store: CheckpointFiles, place: LargeFile
) -> PartsUpload | None:
    """Open the upload in parts of the file at `place.path`, a path in the store.

    Begin nothing in the store: the first call of `PartsUpload.stored_parts` begins the upload.
    Return None if the store accepts only whole files.

    Raises:
        RequestError: unavailable, if the store does not answer.
    """
    memory = UploadSessions(services.table, upload.trial_id, upload.uuid, place.path)
    try:
        return store.upload_in_parts(place, memory)
    except OSError as error:
        raise store_error(error) from None


def _check_part(path: str, number: int, sizes: PartSizes) -> None:
    """Check that a file at `path` has a part with this number, counted from 1.

    Raises:
        RequestError: invalid, if the file has no such part.
    """
    if number not in sizes.numbers:
        raise invalid("parts", f"{path} has no part {number}; it has {sizes.count} parts")


def _check_whole(path: str, size: int, opened: PartsUpload | None) -> None:
    """Check that the store accepts a whole file of this size in bytes.

    `opened` is the upload in parts, which has the limit. None, or no limit, accepts any size.

    Raises:
        RequestError: too_large, with the advice to upload the file in parts.
    """
    if opened is None or opened.whole_bytes_max is None or size <= opened.whole_bytes_max:
        return
    text = f"{path} has {size} bytes; a request accepts at most {opened.whole_bytes_max}"
    raise RequestError(Code.TOO_LARGE, f"{text}: upload it in parts")
