"""The directory of one allocation: what lies where, and how the agent writes it.

    WORK/allocations/ALLOCATION/
      in/ out/         the trial directory: the agent writes in/, the trial out/
      code/ home/      the trial's writable copy of the model code, and its home
      agent/           the agent's records: its report file, the log, the supervisor's files

Everything is made with mode 0700. What is written into a place that another process reads is
written beside it and renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

ALLOCATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
UNTRUSTED_BYTES_MAX = 64 * 1024
SUBDIRECTORIES = ("in", "out", "code", "home", "agent")


class AllocationDirectory:
    """Paths and writes of one allocation. Raises ValueError for a name that is no plain name.

    What the trial reads and writes is handed over to `owner`, if there is one.
    """

    def __init__(
        self, allocations: Path, allocation: str, owner: tuple[int, int] | None = None
    ) -> None:
        if not ALLOCATION_NAME.fullmatch(allocation):
            raise ValueError(f"{allocation!r} is no allocation id; expected TRIAL.EPOCH")
        self.allocation = allocation
        self.owner = owner
        self.path = allocations / allocation
        self.inputs = self.path / "in"
        self.out = self.path / "out"
        self.code = self.path / "code"
        self.home = self.path / "home"
        self.agent = self.path / "agent"
        self.log = self.agent / "trial.log"
        self.report = self.agent / "report-agent.jsonl"

    def create(self) -> None:
        """Make the directories; those that exist are kept."""
        for name in SUBDIRECTORIES:
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / "tmp").mkdir(mode=0o700, exist_ok=True)
        self.log.touch(mode=0o600)

    def hand_over(self) -> None:
        """Make the trial's user the owner of all but the agent's records."""
        if self.owner is None:
            return
        os.chown(self.log, *self.owner, follow_symlinks=False)
        for top in (self.inputs, self.out, self.code, self.home):
            os.chown(top, *self.owner, follow_symlinks=False)
            for folder, folders, files in os.walk(top):
                for name in folders + files:
                    os.chown(Path(folder, name), *self.owner, follow_symlinks=False)

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Write in/spec.json, read-only."""
        write_atomically(self.inputs / "spec.json", spec, mode=0o400, owner=self.owner)

    def read_spec(self) -> dict[str, Any] | None:
        """What in/spec.json says, None where there is none."""
        return read_object(self.inputs / "spec.json")

    def write_directives(self, directives: dict[str, Any]) -> None:
        """Replace in/directives.json."""
        path = self.inputs / "directives.json"
        write_atomically(path, directives, mode=0o400, owner=self.owner)

    def read_directives(self) -> dict[str, Any] | None:
        """What in/directives.json says, None before it was written."""
        return read_object(self.inputs / "directives.json")

    def write_notices(self, notices: list[str]) -> None:
        """Begin the trial's log with what its user should know."""
        with self.log.open("a", encoding="utf-8", errors="replace") as log:
            log.writelines(f"{notice}\n" for notice in notices)

    def discard(self, trash: Path) -> Path:
        """Move the directory out of the way at once; `delete_tree` takes its time afterwards."""
        moved = trash / f"{self.allocation}-{os.urandom(8).hex()}"
        self.path.rename(moved)
        return moved


def write_atomically(
    path: Path, content: object, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write `content` as JSON beside `path` and rename it there, owned by `owner`."""
    beside = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(beside, flags, mode), "wb") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(json.dumps(content).encode())
    beside.rename(path)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file, None where there is none."""
    try:
        return parse_object(path.read_bytes())
    except OSError:
        return None


def read_untrusted(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file that a trial may have written, None where there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return parse_object(os.read(descriptor, UNTRUSTED_BYTES_MAX))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def delete_tree(path: Path) -> None:
    """Delete a directory or a link, never what a link points to; a trial's modes do not stop it."""
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path, onerror=_opened_and_retried)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path, ignore_errors=True)


def _opened_and_retried(function: Any, path: str, _: object) -> None:
    """A directory without permissions hides its files: open it and go on."""
    with contextlib.suppress(OSError):
        for place in (Path(path).parent, Path(path)):
            if stat.S_ISDIR(place.lstat().st_mode):
                place.chmod(0o700)
        if function in (os.unlink, os.rmdir):
            function(path)
        else:
            shutil.rmtree(path, ignore_errors=True)


def parse_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in the bytes, None for anything else."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
