"""What a runner remembers, in a folder: whole at every moment, whatever ends the process.

`saved-N` is a state, complete once it has its name; the one before stays until the cluster has
taken what the last one asks for. `request.json` is the experiment's creation, kept from before it
is asked for: asked again, it makes no second experiment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detcloud import DetcloudError
from detcloud.searcher.method import SearcherState, SearchMethod

VERSION = 1
_SAVED = re.compile(r"saved-([0-9]{1,15})")


@dataclass
class Saved:
    """A state. Of the posts `post` was the last before `operations`, which are still to be posted,
    and `acknowledged` the event up to which that one said it had seen all.
    """

    experiment_id: int
    cluster_id: str
    post: int = 0
    acknowledged: int = 0
    operations: list[dict[str, Any]] = field(default_factory=list)
    version: int = VERSION


class StateFolder:
    """The folder of one search; it is made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DetcloudError(f"{path} is no folder for a search: {error.strerror}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps others out; DetcloudError where somebody else is in."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DetcloudError(
                    f"another process runs the search in {self.path}; each search needs a folder "
                    "of its own, and each folder one process"
                ) from None
            yield

    def request(self) -> dict[str, Any] | None:
        """The creation that was asked for, or about to be; None before that."""
        path = self.path / "request.json"
        return _read(path) if path.exists() else None

    def keep_request(self, request: dict[str, Any]) -> None:
        """Keeps a creation that is about to be asked for."""
        _write(self.path / "request.json", request)

    def forget_request(self) -> None:
        """The creation was refused: there may be another."""
        (self.path / "request.json").unlink()

    def save(self, saved: Saved, state: SearcherState, method: SearchMethod) -> None:
        """Keeps a state as the newest one, beside the one before it."""
        numbers = self._numbers()
        number = max(numbers, default=0) + 1
        fresh = self.path / "saving"
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "method").mkdir(parents=True)
        method.save_method_state(fresh / "method")
        _write(fresh / "runner.json", {**asdict(saved), "searcher_state": state.to_dict()})
        for root, _, names in os.walk(fresh):
            for name in (*names, "."):
                _sync(Path(root, name))
        fresh.rename(self.path / f"saved-{number}")
        _sync(self.path)
        for old in numbers:
            if old < number - 1:
                shutil.rmtree(self.path / f"saved-{old}", ignore_errors=True)

    def load(self, state: SearcherState, method: SearchMethod) -> Saved | None:
        """The newest state, into `state` and `method`; None if there is none."""
        number = max(self._numbers(), default=0)
        if not number:
            return None
        folder = self.path / f"saved-{number}"
        fields = _read(folder / "runner.json")
        if fields.get("version") != VERSION:
            raise DetcloudError(
                f"{folder} is of version {fields.get('version')}; this runner reads {VERSION}"
            )
        state.from_dict(fields.pop("searcher_state"))
        method.load_method_state(folder / "method")
        return Saved(**fields)

    def forget_newest(self) -> bool:
        """Goes back to the state before the newest one; False where there is none."""
        numbers = sorted(self._numbers())
        if len(numbers) < 2:
            return False
        away = self.path / "saving"
        shutil.rmtree(away, ignore_errors=True)
        (self.path / f"saved-{numbers[-1]}").rename(away)
        return True

    def _numbers(self) -> list[int]:
        found = (_SAVED.fullmatch(entry.name) for entry in self.path.iterdir())
        return [int(match[1]) for match in found if match]


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DetcloudError(f"{path} could not be read: {error}") from None
    if not isinstance(fields, dict):
        raise DetcloudError(f"{path} holds no state of a search")
    return fields


def _write(path: Path, fields: dict[str, Any]) -> None:
    """Whole or not at all, and there after a power cut."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(fields), encoding="utf-8")
    _sync(fresh)
    fresh.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
