"""Requests to the cluster about archives of layers.

An agent may list and offer an experiment's archives only while an allocation of the experiment runs
on the agent.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.layer_archives.records import ARCHIVE_BYTES_MAX, KEY, LayerRefused
from detcloud.agent.package_cache import DECLARED, HOOK
from detcloud.shared.http import ApiError, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

# A cluster that does not answer must not delay a launch.
ATTEMPTS_MAX = 3
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """An archive in the cluster's object store."""

    kind: str
    """DECLARED or HOOK."""
    key: str
    """The key of the layer."""
    sha256: str
    """The digest of the archive."""
    size: int
    """The bytes of the archive."""
    url: str
    """The address for a download, valid for some minutes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The cluster's answer to an offered archive."""

    upload: dict[str, Any] | None
    """The upload request: `path` and maybe `headers`. None if the cluster wants no upload."""
    reason: str
    """The reason of a refusal. "" if the archive is wanted or already stored."""


class ClusterArchives:
    """The archives of layers in a cluster, accessed by an agent.

    Args:
        url: the cluster's API.
        agent: the agent's id.
        session_token: returns the agent's current token, or None without a session.
    """

    def __init__(self, url: str, agent: str, session_token: Callable[[], str | None]) -> None:
        self._url = url
        self._path = f"/api/v1/agents/{agent}/package-archives"
        self._session_token = session_token

    def list_archives(self, allocation: str) -> list[StoredArchive] | None:
        """List the stored archives of an allocation's experiment. Skip archives of unknown kinds.

        Return None if the cluster answers 404 or 405, because it keeps no archives.

        Raises:
            OSError: the cluster does not answer.
            ApiError: the cluster refuses for another reason.
            LayerRefused: the cluster lists an archive with an invalid key, digest or size.
        """
        try:
            with closing(self._transport()) as client:
                answer = client.request("GET", f"{self._path}?allocation={allocation}")
        except ApiError as error:
            if error.status in (404, 405):
                return None
            raise
        archives = answer["archives"]
        return [_parse_archive(fields) for fields in archives if fields["kind"] in (DECLARED, HOOK)]

    def offer_archive(self, allocation: str, kind: str, key: str, size: int, sha256: str) -> Offer:
        """Offer an archive to the cluster, and return the answer. Nothing is uploaded yet.

        `kind` is DECLARED or HOOK, `key` the layer's key, `size` the archive's bytes. Raise OSError
        if the cluster does not answer, ApiError for a refused request.
        """
        about = {"kind": kind, "key": key, "size": size, "sha256": sha256}
        with closing(self._transport()) as client:
            answer = client.request("POST", self._path, {"allocation": allocation, **about})
        return Offer(answer.get("upload"), str(answer.get("reason") or ""))

    def download(self, archive: StoredArchive, file: Any) -> None:
        """Download an archive into an open binary file. The digest is not verified.

        Raise OSError if the download fails, ApiError if it is refused.
        """
        with closing(self._transport()) as client:
            client.download(archive.url, file)

    def upload(self, offer: Offer, file: Any, size: int) -> None:
        """Upload an archive of `size` bytes from an open binary file to the place of the offer.

        Raise OSError if the upload fails, ApiError if it is refused. `offer.upload` must not be
        None.
        """
        upload = offer.upload or {}
        # A cluster on a laptop answers only after it has written the whole archive.
        with closing(self._transport(timeout_seconds=120.0)) as client:
            client.upload(upload["path"], file, size, headers=upload.get("headers") or {})

    def _transport(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Transport:
        return Transport(
            self._url,
            self._session_token(),
            timeout_seconds=timeout_seconds,
            attempts_max=ATTEMPTS_MAX,
        )


def _parse_archive(fields: dict[str, Any]) -> StoredArchive:
    archive = StoredArchive(**{name: fields[name] for name in StoredArchive.__slots__})
    if not KEY.fullmatch(archive.key) or not KEY.fullmatch(archive.sha256):
        raise LayerRefused("the cluster named an archive without a valid key")
    if not 0 < archive.size <= ARCHIVE_BYTES_MAX:
        raise LayerRefused(f"the archive has {archive.size} bytes")
    return archive
