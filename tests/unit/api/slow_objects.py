"""An object store that is slow on demand."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from control_plane.api.app import create_app
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.cluster import Cluster


class SlowObjects(DirectoryObjectStore):
    """An object store whose reads and writes wait for `may_end` while `is_slow` is set.

    Two waiting calls at once are an error.
    """

    def __init__(self, root: Path, signer: HmacUrlSigner) -> None:
        super().__init__(root, signer)
        self.is_slow = False
        self.is_called, self.may_end = threading.Event(), threading.Event()
        """Whether a slow call has begun; whether slow calls may end."""
        self._at_once: list[ObjectKey] = []

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        self._wait(key)
        return super().get(key, start=start, length=length)

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        self._wait(key)
        return super().put(key, content, if_absent=if_absent)

    def _wait(self, key: ObjectKey) -> None:
        if self.is_slow:
            self._at_once.append(key)
            self.is_called.set()
            assert self.may_end.wait(ANSWER_SECONDS_MAX)
            assert self._at_once == [key], "two archives are processed at once"
            self._at_once.pop()


def with_slow_objects(cluster: Cluster, root: Path) -> tuple[Cluster, SlowObjects]:
    """Return the cluster with a new object store below `root`, and the store."""
    objects = SlowObjects(root, cluster.signer)
    services = replace(cluster.services, objects=objects)
    return replace(cluster, objects=objects, services=services, app=create_app(services)), objects
