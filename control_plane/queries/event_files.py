"""Files for TensorBoard that a trial wrote, listed with URLs to fetch them.

Trials name these files and write them, so that nothing of them is trusted: the client that
downloads them checks their paths. A store that signs URLs hands them out itself; files of other
stores are read here.
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
# A trial of a month that is stored every ten minutes has 4,400 parts of a file.
PARTS_MAX = 50_000


class EventFilePart(Answer):
    """Bytes of a file: `url` may be fetched without a token for 15 minutes."""

    size: int
    url: str


class TrialEventFile(Answer):
    """A file for TensorBoard: its parts follow each other. While `version` is the same, more parts
    or a larger last one are all that changes.
    """

    path: str
    size: int
    version: str
    parts: list[EventFilePart]


def list_event_files(services: Services, trial_id: int, page: PageRequest) -> Page[TrialEventFile]:
    """List the trial's files for TensorBoard by path.

    Raises:
        RequestError: not_found; invalid; conflict, for too many files; unavailable, if the store
            does not answer.
    """
    store, parts = _open_folder(services, trial_id)
    folder = "/".join(parts)

    def describe(_: int, file: EventFile) -> TrialEventFile:
        described = [
            EventFilePart(size=part.size, url=_url(services, store, folder, trial_id, part))
            for part in file.parts
        ]
        return TrialEventFile(path=file.path, size=file.size, version=file.version, parts=described)

    files = assemble_files(_list_stored(store, parts, trial_id))
    return page_from_sequence(files, page, EVENT_FILES, describe)


def open_event_file(services: Services, key: ObjectKey) -> FileContent:
    """Open the part whose URL `list_event_files` signed; RequestError as that."""
    _, trial_id, digest = key.parts
    store, parts = _open_folder(services, int(trial_id))
    for path, _ in _list_stored(store, parts, int(trial_id)):
        if _digest(path) == digest:
            try:
                return store.open_file("/".join((*parts, path)))
            except NoSuchFile:
                break
            except OSError as error:
                raise store_error(error) from None
    raise RequestError(Code.NOT_FOUND, f"this file of trial {trial_id} is gone")


def _open_folder(services: Services, trial_id: int) -> tuple[CheckpointFiles, tuple[str, ...]]:
    """The store of the trial's files, and their folder in it."""
    experiment_id = get_trial(services, trial_id).experiment_id
    try:
        store = open_checkpoint_files(experiment_storage(services, experiment_id))
    except OSError as error:
        raise store_error(error) from None
    return store, (TENSORBOARD_FOLDER, str(experiment_id), str(trial_id))


def _list_stored(
    store: CheckpointFiles, parts: tuple[str, ...], trial_id: int
) -> Iterator[tuple[str, int]]:
    try:
        # There need be no root where nothing was ever written.
        found = list(islice(store.list_files(parts), PARTS_MAX + 1))
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise store_error(error) from None
    if len(found) > PARTS_MAX:
        text = f"trial {trial_id} has more than {PARTS_MAX} stored files for TensorBoard"
        raise RequestError(Code.CONFLICT, f"{text}: read them from the checkpoint store itself")
    return iter(found)


def _url(services: Services, store: CheckpointFiles, folder: str, trial_id: int, part: Part) -> str:
    if url := store.signed_url(f"{folder}/{part.key}", VALIDITY_MS_MAX // 1000):
        return url
    # A path may hold what a key may not.
    key = ObjectKey(f"{EVENT_FILES}/{trial_id}/{_digest(part.key)}")
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
