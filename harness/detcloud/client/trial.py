"""Handles on one trial and on one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcloud.client.cluster import Cluster

LOG_CHUNK_BYTES = 1 << 20


class Trial:
    """A trial as the cluster last described it: `data` has the fields of docs/api.md."""

    def __init__(self, cluster: Cluster, data: dict[str, Any]) -> None:
        self._cluster = cluster
        self.data = data

    @property
    def id(self) -> int:
        return int(self.data["id"])

    @property
    def state(self) -> str:
        return str(self.data["state"])

    def refresh(self) -> None:
        self.data = self._cluster.get(f"/trials/{self.id}")

    def metrics(self, group: str | None = None) -> Iterator[dict[str, Any]]:
        """`{group, steps_completed, metrics, time_ms}` in the order of reporting."""
        return self._cluster.items(f"/trials/{self.id}/metrics", group=group)

    def checkpoints(self) -> Iterator[Checkpoint]:
        items = self._cluster.items(f"/trials/{self.id}/checkpoints")
        return (Checkpoint(self._cluster, item) for item in items)

    def log_chunk(self, after: int = 0, tail_bytes: int | None = None) -> dict[str, Any]:
        """`{text, next, complete}`: the log from byte `after` on, or its last `tail_bytes`."""
        query = {"limit_bytes": LOG_CHUNK_BYTES}
        query |= {"after": after} if tail_bytes is None else {"tail_bytes": tail_bytes}
        chunk: dict[str, Any] = self._cluster.get(f"/trials/{self.id}/logs", **query)
        return chunk

    def logs(
        self,
        *,
        follow: bool = False,
        polling_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[str]:
        """Pieces of the log in order; with `follow`, until the trial has ended."""
        offset = 0
        while True:
            chunk = self.log_chunk(offset)
            if chunk["text"]:
                yield chunk["text"]
            moved = chunk["next"] > offset
            offset = chunk["next"]
            if moved:
                continue
            if chunk["complete"] or not follow:
                return
            sleep(polling_seconds)


class Checkpoint:
    """A checkpoint as the cluster last described it: `data` has the fields of docs/api.md."""

    def __init__(self, cluster: Cluster, data: dict[str, Any]) -> None:
        self._cluster = cluster
        self.data = data

    @property
    def uuid(self) -> str:
        return str(self.data["uuid"])

    def files(self) -> list[dict[str, Any]]:
        """`{path, size, sha256, url}`; a URL expires after some minutes."""
        files: list[dict[str, Any]] = self._cluster.get(f"/checkpoints/{self.uuid}/files")["items"]
        return files

    def download(
        self, destination: Path, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Fetches and verifies every file, then renames the folder to `destination`.

        `on_progress` is told the bytes that came and the bytes in all.

        Raises:
            DetcloudError: an unsafe path, a wrong size or digest, or an existing destination.
        """
        from detcloud.client.download import download_files

        download_files(self._cluster.http, self.files(), destination, on_progress)
