"""The archiving of running trials' layers, in a thread that ends when the queue is empty."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.layer_archives.trial_layers import find_used_layer
from detcloud.shared.errors import DetcloudError
from detcloud.shared.files import delete_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.layer_archives.cluster import ClusterArchives
    from detcloud.agent.layer_archives.trial_layers import TrialLayers, UsedLayer

PACKAGES = str(Path(__file__).parents[3])
POLL_SECONDS = 0.5


class TrialEnded(Exception):
    """The trial has ended, so that the agent may no longer store archives of the experiment."""


class LayerUploads:
    """A queue of allocations with layers to archive. A single thread at a time works on the queue.

    `archives` are the cluster's archives, `transfers` is a private folder for archive files, and
    `log_line` writes to the agent's log.
    """

    def __init__(
        self, archives: ClusterArchives, transfers: Path, log_line: Callable[[str], None]
    ) -> None:
        self._archives = archives
        self._transfers = transfers
        self._log_line = log_line
        self._queue: queue.SimpleQueue[tuple[TrialLayers, Callable[[], bool]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_working = False
        # The experiment, kind and key of layers that the cluster has stored or refused.
        self._settled: set[tuple[str, str, str]] = set()

    def clean(self) -> None:
        """Delete the folder of transfers, which an earlier agent may have left."""
        if self._transfers.is_dir():
            delete_tree(self._transfers)

    def add(self, layers: TrialLayers, is_active: Callable[[], bool]) -> None:
        """Queue the used layers of an allocation for archiving, and start the thread if needed.

        The archiving stops once `is_active` returns False. Layers that the cluster has or refused
        before are skipped. Failures are written to the trial's log, not raised.
        """
        self._queue.put((layers, is_active))
        with self._lock:
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, name="layer archives", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                try:
                    layers, is_active = self._queue.get_nowait()
                except queue.Empty:
                    self._is_working = False
                    return
            for used in layers.used:
                self._archive_or_tell(layers, used, is_active)

    def _archive_or_tell(
        self, layers: TrialLayers, used: UsedLayer, is_active: Callable[[], bool]
    ) -> None:
        try:
            reason = self._archive(layers, used, is_active)
        except TrialEnded:
            return
        except Exception as error:
            # Archives are optional, so no error may end the agent or the trial.
            if not isinstance(error, (DetcloudError, OSError)):
                self._log_line(f"an archive failed: {type(error).__name__}: {error}")
            reason = str(error)
        if reason and is_active():
            layers.tell(used.kind, f"are not kept for other machines: {reason}")

    def _archive(self, layers: TrialLayers, used: UsedLayer, is_active: Callable[[], bool]) -> str:
        """Pack a layer and upload the archive. Return the reason of the cluster's refusal, or "".

        Do nothing, and return "", if the layer is not found or empty, is already archived or
        refused, if the trial has ended, or if the cluster keeps no archives.

        Raises:
            TrialEnded: the trial ends meanwhile.
            OSError: the packing fails or the cluster does not answer.
            DetcloudError: the cluster or the store refuses a request.
            LayerRefused: the cluster lists an invalid archive.
        """
        found = find_used_layer(used, layers.directory.overlay)
        if found is None:
            return ""
        key, layer = found
        with os.scandir(used.cache / layer) as entries:
            if not any(entries):
                # A hook without packages in a container.
                return ""
        experiment = layers.experiment
        if (experiment, used.kind, key) in self._settled or not is_active():
            return ""
        allocation = layers.directory.allocation
        stored = self._archives.list_archives(allocation)
        if stored is None or any((one.kind, one.key) == (used.kind, key) for one in stored):
            self._settled.add((experiment, used.kind, key))
            return ""
        self._transfers.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive = self._transfers / f"{os.urandom(8).hex()}.pack"
        try:
            packed = _pack(used.cache, layer, archive, is_active)
            size = int(packed["size"])
            offer = self._archives.offer_archive(allocation, used.kind, key, size, packed["sha256"])
            if offer.upload is not None:
                with _ActiveFile(archive, is_active) as file:
                    self._archives.upload(offer, file, size)
                text = f"packages of {used.kind} layer {key[:12]} were archived"
                self._log_line(f"{allocation}: {text}, {size / 2**20:.1f} MiB")
        finally:
            archive.unlink(missing_ok=True)
        self._settled.add((experiment, used.kind, key))
        return offer.reason


def _pack(cache: Path, layer: str, archive: Path, is_active: Callable[[], bool]) -> dict[str, Any]:
    """Pack a layer into the file `archive` in a child process. Return the result of `pack_layer`.

    Kill the process and raise TrialEnded once `is_active` returns False. Raise OSError if the
    process cannot be started or fails. The file may then contain a part.
    """
    module = "detcloud.agent.layer_archives.pack"
    command = [sys.executable, "-P", "-m", module, str(cache), layer, str(archive)]
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(timeout=POLL_SECONDS)
                break
            if not is_active():
                process.kill()
                raise TrialEnded
    if process.returncode:
        raise OSError(errors.strip()[-300:] or f"packing ended with {process.returncode}")
    packed: dict[str, Any] = json.loads(output)
    return packed


class _ActiveFile(io.FileIO):
    """An archive file for an upload. Reading raises TrialEnded after the end of the trial."""

    def __init__(self, path: Path, is_active: Callable[[], bool]) -> None:
        super().__init__(path, "rb")
        self._is_active = is_active

    def read(self, size: int | None = -1, /) -> Any:
        if not self._is_active():
            raise TrialEnded
        return super().read(-1 if size is None else size)
