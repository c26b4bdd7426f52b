"""The folder of a search runner's state, which is consistent whenever the process ends.

A complete state is a folder `saved-N`. The previous state is kept until the cluster has accepted
the operations of the newest state. `request.json` is the request that creates the experiment. The
request is written before it is sent, so that a repeated request creates no second experiment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detcloud.searcher.method import SearcherState, SearchMethod
from detcloud.shared.errors import DetcloudError

VERSION = 1
_STATE_FOLDER = re.compile(r"saved-([0-9]{1,15})")


@dataclass
class RunnerRecord:
    """The runner's progress."""

    experiment_id: int
    cluster_id: str
    post: int = 0
    """The number of the last accepted post of operations."""
    acknowledged: int = 0
    """The id of the last event that `operations` answer."""
    operations: list[dict[str, Any]] = field(default_factory=list)
    """The operations that are still to be posted, as the API expects them."""
    version: int = VERSION
    """The version of the format on disk."""


def sync_path(path: Path) -> None:
    """Flush a file or folder to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateFolder:
    """The folder of a search, created if missing. Raises DetcloudError if that fails.

    `sync` flushes a file or folder to disk.
    """

    def __init__(self, path: Path, sync: Callable[[Path], None] = sync_path) -> None:
        self.path = path
        self._sync = sync
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DetcloudError(
                f"{path} cannot be used as the folder of a search: {error.strerror}"
            ) from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for the block, by the file `lock`, which stays.

        Raises DetcloudError at once if another process holds the lock.
        """
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DetcloudError(
                    f"another process runs the search in {self.path}; each search needs a folder "
                    "of its own, and each folder one process"
                ) from None
            yield

    def read_request(self) -> dict[str, Any] | None:
        """Return the stored request that creates the experiment. Return None if no request is
        stored.

        Raises DetcloudError if the file cannot be read or contains no JSON object.
        """
        path = self.path / "request.json"
        return _read_json(path) if path.exists() else None

    def write_request(self, request: dict[str, Any]) -> None:
        """Write the request to disk completely or not at all, before the request is sent."""
        self._write_json(self.path / "request.json", request)

    def delete_request(self) -> None:
        """Delete the stored request, so that a different request may follow.

        Raises FileNotFoundError if no request is stored.
        """
        (self.path / "request.json").unlink()

    def save_state(self, record: RunnerRecord, state: SearcherState, method: SearchMethod) -> None:
        """Save a new newest state completely or not at all, with the files of the method.

        Keep the previous state, and delete all older states. Raises OSError if a file cannot be
        written; the previous state is then still the newest.
        """
        numbers = self._state_numbers()
        number = max(numbers, default=0) + 1
        fresh = self.path / "saving"
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "method").mkdir(parents=True)
        _save_method(method, fresh / "method", state, record.experiment_id)
        self._write_json(
            fresh / "runner.json", {**asdict(record), "searcher_state": state.to_dict()}
        )
        for root, _, names in os.walk(fresh):
            for name in (*names, "."):
                self._sync(Path(root, name))
        fresh.rename(self.path / f"saved-{number}")
        self._sync(self.path)
        for old in numbers:
            if old < number - 1:
                shutil.rmtree(self.path / f"saved-{old}", ignore_errors=True)

    def read_record(self) -> RunnerRecord | None:
        """Return the record of the newest state. Return None if no state is saved.

        Raises DetcloudError if the file cannot be read or has another version.
        """
        folder = self._newest_state()
        if folder is None:
            return None
        fields = _read_json(folder / "runner.json")
        if fields.get("version") != VERSION:
            raise DetcloudError(
                f"{folder} is of version {fields.get('version')}; this runner reads {VERSION}"
            )
        del fields["searcher_state"]
        return RunnerRecord(**fields)

    def load_state(self, state: SearcherState, method: SearchMethod) -> RunnerRecord | None:
        """Load the newest state into `state` and `method`, and return the state's record.

        If no state is saved, return None and change nothing. Raises DetcloudError if a file cannot
        be read or has another version.
        """
        record, folder = self.read_record(), self._newest_state()
        if folder is not None:
            state.from_dict(_read_json(folder / "runner.json")["searcher_state"])
            _load_method(method, folder / "method")
        return record

    def discard_newest_state(self) -> bool:
        """Discard the newest state, so that the previous state becomes the newest. Return True.

        If no older state is saved, discard nothing and return False.
        """
        numbers = sorted(self._state_numbers())
        if len(numbers) < 2:
            return False
        discarded = self.path / "saving"
        shutil.rmtree(discarded, ignore_errors=True)
        (self.path / f"saved-{numbers[-1]}").rename(discarded)
        return True

    def _write_json(self, path: Path, fields: dict[str, Any]) -> None:
        """Write the file completely or not at all, and flush the file to disk."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(fields), encoding="utf-8")
        self._sync(fresh)
        fresh.replace(path)
        self._sync(path.parent)

    def _newest_state(self) -> Path | None:
        number = max(self._state_numbers(), default=0)
        return self.path / f"saved-{number}" if number else None

    def _state_numbers(self) -> list[int]:
        matches = (_STATE_FOLDER.fullmatch(entry.name) for entry in self.path.iterdir())
        return [int(match[1]) for match in matches if match]


def _save_method(
    method: SearchMethod, folder: Path, state: SearcherState, experiment_id: int
) -> None:
    """Save the method in the empty folder `folder`.

    If the class overrides `save`, as for Determined, call `save`. Otherwise call
    `save_method_state`, because the record contains the search's state.
    """
    if type(method).save is SearchMethod.save:
        method.save_method_state(folder)
    else:
        method.save(state, folder, experiment_id=experiment_id)


def _load_method(method: SearchMethod, folder: Path) -> None:
    if type(method).load is SearchMethod.load:
        method.load_method_state(folder)
    else:
        method.load(folder)


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises DetcloudError if the file cannot be read or has
    none.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DetcloudError(f"{path} could not be read: {error}") from None
    if not isinstance(fields, dict):
        raise DetcloudError(f"{path} does not contain the state of a search")
    return fields
