"""Downloads of checkpoints, from the store itself or by URLs from the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.client.download import (
    OnProgress,
    RenewAddresses,
    download_files,
    fill_folder,
    verify_file,
)
from detcloud.client.records import CheckpointFile, CheckpointPlace
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.storage import StorageError, build_own_store

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

MASTER, DIRECT, AUTO = "master", "direct", "auto"
DOWNLOAD_MODES = (DIRECT, MASTER, AUTO)

# Fields that name a store's host. The submitter of the experiment chose this host.
_ENDPOINT_FIELDS = ("endpoint_url", "hdfs_url")


def download_checkpoint(
    client: Requester,
    uuid: str,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None,
    mode: str,
    renew_addresses: RenewAddresses,
) -> None:
    """Download `files` of a checkpoint to the new folder `destination`.

    The files are verified. `mode` is `master` for URLs from the cluster, `direct` for the store
    itself with the credentials in this process's environment, or `auto` for `direct`, then
    `master`. `on_progress` is called with the bytes received and the total bytes.
    `renew_addresses` returns the files with new URLs; it is called before the present URLs expire.

    Raises:
        DetcloudError: no such mode, `destination` exists or cannot be written, a path is unsafe, a
            file has a wrong size or digest, or the store refuses these credentials.
    """
    if mode not in DOWNLOAD_MODES:
        raise DetcloudError(f"mode {mode!r}: expected one of {', '.join(DOWNLOAD_MODES)}")
    if mode != MASTER and _is_fetched_directly(client, uuid, files, destination, on_progress, mode):
        return
    download_files(client.http, files, destination, on_progress, renew_addresses)


def _is_fetched_directly(
    client: Requester,
    uuid: str,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None,
    mode: str,
) -> bool:
    """Download the files directly from the store, and return whether the download succeeded.

    With `mode` `auto`, return False if the store does not accept this process's credentials, if
    only the cluster can reach the store, or if the credentials would go to a host that an
    experiment's configuration names. With `direct`, raise DetcloudError in the first two cases.
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
        # The cluster has no such route, or only the cluster can reach the store.
        if mode == AUTO and error.code in ("not_found", "conflict"):
            return False
        raise
    return True


def _reveals_credentials(storage: Mapping[str, str]) -> bool:
    """Return whether credentials would go to a host that an experiment's configuration names."""
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
