"""The directory of an allocation: layout and access by the agent.

    WORK/allocations/ALLOCATION/
      in/ out/         the trial directory: the agent writes in/, the trial out/
      code/ home/      the trial's writable copy of the model code, and its home
      agent/           the agent's records: its report file, the log, the supervisor's files
    WORK/environments/   installed packages that several runs of trials share

All folders are created with mode 0700.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from detcloud.shared.files import parse_json_object, read_regular_file, write_atomically

ALLOCATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# The agent never writes larger files.
INPUT_BYTES_MAX = 16 << 20
SUBDIRECTORIES = ("in", "out", "code", "home", "agent")
OWNER_FILE = "owner.json"
"""The record of the owner in the agent's folder, which no trial can write."""
OWNER_BYTES_MAX = 100


class AllocationDirectory:
    """The paths and files of an allocation. Constructing an object creates no files.

    Args:
        allocations: the folder of all allocations.
        allocation: the allocation's id.
        owner: the user and group ids of the trial's files. None for the agent's user. `set_owner`
            and `restore_owner` replace the value.

    Raises:
        ValueError: the id is not of the form ALLOCATION_NAME.
    """

    def __init__(
        self, allocations: Path, allocation: str, owner: tuple[int, int] | None = None
    ) -> None:
        if not ALLOCATION_NAME.fullmatch(allocation):
            raise ValueError(f"{allocation!r} is not an allocation id; expected TRIAL.EPOCH")
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
        self.overlay = self.home / ".python"
        self.environments = allocations.parent / "environments"

    def create(self) -> None:
        """Create the folders and an empty log. Existing folders and files are kept."""
        for name in SUBDIRECTORIES:
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / "tmp").mkdir(mode=0o700, exist_ok=True)
        self.log.touch(mode=0o600)

    def set_owner(self, owner: tuple[int, int]) -> None:
        """Record the owner of the trial's files for later agents, and replace `owner`.

        Existing files keep their owner until `change_owner`. Raise OSError if the record cannot be
        written.
        """
        write_atomically(self.agent / OWNER_FILE, list(owner))
        self.owner = owner

    def restore_owner(self) -> None:
        """Replace `owner` by the record of `set_owner`. Do nothing without a record.

        Raise ValueError for a damaged record.
        """
        content = read_regular_file(self.agent / OWNER_FILE, OWNER_BYTES_MAX)
        if content is not None:
            uid, gid = map(int, json.loads(content))
            self.owner = uid, gid

    def change_owner(self) -> None:
        """Make `owner` the owner of the log and of the trial's folders with all entries.

        The agent's records keep their owner. Do nothing if `owner` is None. Raise OSError if the
        owner of an entry cannot be changed.
        """
        if self.owner is None:
            return
        os.chown(self.log, *self.owner, follow_symlinks=False)
        for top in (self.inputs, self.out, self.code, self.home):
            for folder, folders, files in os.walk(top):
                for name in folders + files:
                    os.chown(Path(folder, name), *self.owner, follow_symlinks=False)
            # Last, so that no process of the owner can replace an entry by a link meanwhile.
            os.chown(top, *self.owner, follow_symlinks=False)

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Replace in/spec.json atomically by a read-only file that belongs to `owner`."""
        write_atomically(self.inputs / "spec.json", spec, mode=0o400, owner=self.owner)

    def read_spec(self) -> dict[str, Any] | None:
        """Read in/spec.json. Return None if the file is missing, unreadable or no JSON object."""
        return self._read_input("spec.json")

    def write_directives(self, directives: dict[str, Any]) -> None:
        """Replace in/directives.json atomically by a read-only file that belongs to `owner`.

        Create the folder again if the trial removed it. Raise OSError if the file cannot be
        written.
        """
        path = self.inputs / "directives.json"
        if not self.inputs.is_dir() and self.path.is_dir():
            self.inputs.mkdir(mode=0o700)
            if self.owner is not None:
                os.chown(self.inputs, *self.owner, follow_symlinks=False)
        write_atomically(path, directives, mode=0o400, owner=self.owner)

    def read_directives(self) -> dict[str, Any] | None:
        """Read in/directives.json. Return None if the file is missing or no JSON object."""
        return self._read_input("directives.json")

    def _read_input(self, name: str) -> dict[str, Any] | None:
        content = read_regular_file(self.inputs / name, INPUT_BYTES_MAX)
        return None if content is None else parse_json_object(content)

    def write_notices(self, notices: list[str]) -> None:
        """Append lines to the trial's log, starting on a new line.

        Raise OSError if the log cannot be written, for example because the trial has replaced it by
        a link or a pipe.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.log, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "the log is not a regular file", str(self.log))
            size = status.st_size
            is_inside_line = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            text = "".join(f"{notice}\n" for notice in notices)
            os.write(descriptor, ("\n" * is_inside_line + text).encode(errors="replace"))
        finally:
            os.close(descriptor)

    def discard(self, trash: Path) -> Path:
        """Move the whole directory into the folder `trash`, and return the new path.

        The caller deletes the moved directory. Raise OSError if the directory cannot be moved.
        """
        discarded = trash / f"{self.allocation}-{os.urandom(8).hex()}"
        self.path.rename(discarded)
        return discarded
