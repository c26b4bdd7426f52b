"""TensorBoard event files of a trial, listed with URLs for the download.

Trials choose the names and contents of event files, so that neither is trusted: the client that
downloads the files checks the paths. Where the checkpoint store signs URLs, clients fetch the files
from the store. Files of other stores are read by this server.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice

from control_plane.checkpoint_stores.checkpoint_files import (
    CheckpointFiles,
    FileContent,
    NoSuchFile,
)
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.errors import Code, RequestError
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import ObjectKey
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint_files import experiment_storage, store_error
from control_plane.queries.pages import Page, PageRequest, page_from_sequence
from control_plane.queries.trial import get_trial
from control_plane.services import Services
from detcloud.shared.event_parts import TENSORBOARD_FOLDER, EventFile, Part, assemble_files

EVENT_FILES = "event-files"


class EventFilePart(Answer):
    """A part of an event file.

    `size` is in bytes. `url` can be fetched without a token for 15 minutes.
    """

    size: int
    url: str


class TrialEventFile(Answer):
    """A TensorBoard event file: the parts' bytes, joined in order.

    `size` is in bytes. While `version` stays the same, the file only grows: parts are appended, and
    the last part may grow.
    """

    path: str
    size: int
    version: str
    parts: list[EventFilePart]


def list_event_files(services: Services, trial_id: int, page: PageRequest) -> Page[TrialEventFile]:
    """Return a page of the trial's TensorBoard event files, sorted by path, with URLs of all parts.

    The stored parts are listed, but not read. Empty for a trial without event files.

    Raises:
        RequestError: not_found, if the trial does not exist; invalid, for a wrong cursor; conflict,
            for more than `event_file_parts_max` stored parts, or if the cluster may not call the
            store's endpoints; unavailable, if the store does not answer.
    """
    store, parts = open_event_folder(services, trial_id)
    folder = "/".join(parts)

    def describe(_: int, file: EventFile) -> TrialEventFile:
        described = [
            EventFilePart(size=part.size, url=_url(services, store, folder, trial_id, part))
            for part in file.parts
        ]
        path = readable_path(file.path)
        return TrialEventFile(path=path, size=file.size, version=file.version, parts=described)

    files = assemble_files(list_stored_parts(services, store, parts, trial_id))
    return page_from_sequence(files, page, EVENT_FILES, describe)


def open_event_file(services: Services, key: ObjectKey) -> FileContent:
    """Open the stored part at the key of a URL that `list_event_files` signed.

    A stored part is a piece of an event file. All stored parts of the trial are listed.

    Raises:
        RequestError: not_found, if the trial does not exist or the part was deleted; conflict, for
            more than `event_file_parts_max` stored parts, or if the cluster may not call the
            store's endpoints; unavailable, if the store does not answer.
    """
    _, trial_id, digest = key.parts
    store, parts = open_event_folder(services, int(trial_id))
    for path, _ in list_stored_parts(services, store, parts, int(trial_id)):
        if _digest(path) == digest:
            try:
                return store.open_file("/".join((*parts, path)))
            except NoSuchFile:
                break
            except OSError as error:
                raise store_error(error) from None
    raise RequestError(Code.NOT_FOUND, f"this file of trial {trial_id} is gone")


def open_event_folder(services: Services, trial_id: int) -> tuple[CheckpointFiles, tuple[str, ...]]:
    """Return the store of the trial's event files, and the parts of the folder's path in the store.

    The folder need not exist.

    Raises:
        RequestError: not_found, if the trial does not exist; conflict, if the cluster may not call
            the store's endpoints; unavailable, if the store cannot be opened.
    """
    experiment_id = get_trial(services, trial_id).experiment_id
    try:
        store = open_checkpoint_files(experiment_storage(services, experiment_id))
    except OSError as error:
        raise store_error(error) from None
    return store, (TENSORBOARD_FOLDER, str(experiment_id), str(trial_id))


def list_stored_parts(
    services: Services, store: CheckpointFiles, parts: tuple[str, ...], trial_id: int
) -> Iterator[tuple[str, int]]:
    """List the stored parts of a trial's event files below a folder. All parts are listed at the
    call.

    Args:
        services: the services with the limit of the parts.
        store: the store of the event files.
        parts: the names of the folders on the path to the folder.
        trial_id: the trial, for the text of the error.

    Returns:
        The path below the folder and the size in bytes of each part, in no order. Empty without the
        folder.

    Raises:
        RequestError: conflict, for more than `event_file_parts_max` parts; unavailable, if the
            store does not answer.
    """
    parts_max = services.limits.event_file_parts_max
    try:
        files = list(islice(store.list_files(parts), parts_max + 1))
    except FileNotFoundError:
        # A store's root folder does not exist before the first file is written.
        files = []
    except OSError as error:
        raise store_error(error) from None
    if len(files) > parts_max:
        text = f"trial {trial_id} has more than {parts_max} stored files for TensorBoard"
        raise RequestError(Code.CONFLICT, f"{text}: read them from the checkpoint store itself")
    return iter(files)


def readable_path(path: str) -> str:
    """Return a path as valid Unicode text. Bytes that are not UTF-8 are escaped, like \\xff."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _url(services: Services, store: CheckpointFiles, folder: str, trial_id: int, part: Part) -> str:
    """Return a URL of the part: of the store if the store signs URLs, otherwise of this server.

    The URL needs no token and is valid for VALIDITY_MS_MAX. Raises RequestError unavailable if the
    store cannot sign at the moment.
    """
    try:
        if url := store.signed_url(f"{folder}/{part.key}", VALIDITY_MS_MAX // 1000):
            return url
    except OSError as error:
        raise store_error(error) from None
    # A path may contain characters that an object key must not contain.
    key = ObjectKey(f"{EVENT_FILES}/{trial_id}/{_digest(part.key)}")
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def _digest(path: str) -> str:
    """Return the SHA-256 of a path, in hexadecimal, for URLs of this server."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
