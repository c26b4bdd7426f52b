"""Downloads of checkpoints by the ways that there are: from the store itself, with credentials of
one's own, or by the addresses that the cluster gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.client.download import (
    OnProgress,
    download_files,
    fill_folder,
    verify_file,
)
from detcloud.client.records import CheckpointFile, CheckpointPlace
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.storage import StorageError, build_own_store

if TYPE_CHECKING:
    from detcloud.client.client import Client

MASTER, DIRECT, AUTO = "master", "direct", "auto"
DOWNLOAD_MODES = (DIRECT, MASTER, AUTO)

# Of another store than the cloud's own, the submitter of the experiment chose the host.
_ENDPOINT_FIELDS = ("endpoint_url", "hdfs_url")


def download_checkpoint(
    client: Client,
    uuid: str,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None,
    mode: str,
) -> None:
    """Fetch `files` of a checkpoint into a fresh folder by one of DOWNLOAD_MODES.

    Raises:
        DetcloudError: no such mode, or as `Checkpoint.download`.
    """
    if mode not in DOWNLOAD_MODES:
        raise DetcloudError(f"mode {mode!r}: expected one of {', '.join(DOWNLOAD_MODES)}")
    if mode != MASTER and _is_fetched_directly(client, uuid, files, destination, on_progress, mode):
        return
    checkpoint = client.checkpoint(uuid)
    download_files(client.http, files, destination, on_progress, checkpoint.files)


def _is_fetched_directly(
    client: Client,
    uuid: str,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None,
    mode: str,
) -> bool:
    """Fetch the files from the store itself, and return whether they came; with `auto`, False where
    the store is not open to this process.
    """
    try:
        place: CheckpointPlace = client.get(f"/checkpoints/{uuid}/storage")
        if mode == AUTO and _reveals_credentials(place["storage"]):
            return False
        _fetch_from_store(place, files, destination, on_progress)
    except StorageError as error:
        if mode == AUTO:
            return False
        raise DetcloudError(
            f"{error}; --mode direct needs your own credentials for the store, "
            "--mode master does not"
        ) from error
    except ApiError as error:
        # Of a cluster that does not tell, or tells that nobody else reaches the store.
        if mode == AUTO and error.code in ("not_found", "conflict"):
            return False
        raise
    return True


def _reveals_credentials(storage: Mapping[str, str]) -> bool:
    """Whether credentials would be shown to a host that an experiment's configuration names."""
    return any(name in storage for name in _ENDPOINT_FIELDS)


def _fetch_from_store(
    place: CheckpointPlace,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None,
) -> None:
    store = build_own_store(place["storage"])
    tell = on_progress or (lambda done, total: None)
    total = sum(file["size"] for file in files)

    def fetch_all(folder: Path) -> None:
        done = 0
        for file in files:
            path = folder / file["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            store.get(f"{place['path']}/{file['path']}", path)
            verify_file(path, file)
            done += file["size"]
            tell(done, total)

    fill_folder(files, destination, fetch_all)
