"""The directory of one allocation: its layout, and how the agent writes it.

    WORK/allocations/ALLOCATION/
      in/ out/         the trial directory: the agent writes in/, the trial out/
      code/ home/      the trial's writable copy of the model code, and its home
      agent/           the agent's records: its report file, the log, the supervisor's files

Everything is made with mode 0700.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

from detcloud.shared.files import parse_json_object, read_regular_file, write_atomically

ALLOCATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# Larger ones were not written by the agent.
INPUT_BYTES_MAX = 16 << 20
SUBDIRECTORIES = ("in", "out", "code", "home", "agent")


class AllocationDirectory:
    """The paths and files of one allocation. ValueError for an id that is no plain name.

    The trial's own files are given to `owner`, if there is one.
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

    def create(self) -> None:
        """Make the directories; those that exist are kept."""
        for name in SUBDIRECTORIES:
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / "tmp").mkdir(mode=0o700, exist_ok=True)
        self.log.touch(mode=0o600)

    def change_owner(self) -> None:
        """Make the trial's user the owner of everything except the agent's records."""
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
        """The contents of in/spec.json, None without it."""
        return self._read_input("spec.json")

    def write_directives(self, directives: dict[str, Any]) -> None:
        """Replace in/directives.json, in a folder made again where the trial removed it."""
        path = self.inputs / "directives.json"
        if not self.inputs.is_dir() and self.path.is_dir():
            self.inputs.mkdir(mode=0o700)
            if self.owner is not None:
                os.chown(self.inputs, *self.owner, follow_symlinks=False)
        write_atomically(path, directives, mode=0o400, owner=self.owner)

    def read_directives(self) -> dict[str, Any] | None:
        """The contents of in/directives.json, None before it was written."""
        return self._read_input("directives.json")

    def _read_input(self, name: str) -> dict[str, Any] | None:
        content = read_regular_file(self.inputs / name, INPUT_BYTES_MAX)
        return None if content is None else parse_json_object(content)

    def write_notices(self, notices: list[str]) -> None:
        """Append lines for the trial's user to its log; OSError where that is not possible.

        The trial may run and have put anything in the log's place.
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
        """Move the directory into `trash` at once, to be deleted later; its new path."""
        discarded = trash / f"{self.allocation}-{os.urandom(8).hex()}"
        self.path.rename(discarded)
        return discarded
