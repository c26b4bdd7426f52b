"""The folder of a launch: the files by which the agent and the supervisor communicate.

The agent writes launch.json and kill.json. The supervisor writes `begun`, process.json, stop.json
and exit.json. The startup hook's script writes `hook-passed` after a hook without an error.

The supervisor may import this module by its folder, so this module imports nothing of the package.
"""

from __future__ import annotations

import errno
import json
import os

# Errors that waiting does not solve, unlike a full disk.
IN_THE_WAY = (
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
)

# Importing typing would take longer than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class LaunchFolder:
    """The folder of a launch, which the supervisor reads and writes."""

    is_record_impossible = False
    """Whether the last failed record cannot succeed later. The trial has then removed the folder or
    blocked the record's path.
    """

    def __init__(self, path: str) -> None:
        """Read launch.json. Raises OSError or ValueError if the file is missing or no JSON."""
        self.path = path
        with open(f"{path}/launch.json", encoding="utf-8") as file:  # noqa: PTH123
            self.launch: dict[str, Any] = json.load(file)

    def mark_begun(self) -> None:
        """Create the empty file `begun`. Raises OSError."""
        os.close(os.open(f"{self.path}/begun", os.O_WRONLY | os.O_CREAT, 0o600))

    def trial_directory(self) -> str:
        """Return DETCLOUD_TRIAL_DIR of the trial's environment, or "" if the variable is missing.

        If launch.json names no environment, as in a container, read the supervisor's environment.
        """
        variables = self.launch["environment"]
        return str((os.environ if variables is None else variables).get("DETCLOUD_TRIAL_DIR", ""))

    def has_hook_passed(self) -> bool:
        """Return whether the startup hook has ended without an error. False without a hook.

        A hook that runs as another user cannot write this folder, and uses `passed_folder`.
        """
        folder = self.launch.get("passed_folder") or self.path
        return os.path.lexists(f"{folder}/hook-passed")

    def has_kill_request(self) -> bool:
        """Return whether kill.json exists, even if the file is invalid."""
        return os.path.exists(f"{self.path}/kill.json")  # noqa: PTH110

    def read_kill_request(self) -> Mapping[str, Any] | None:
        """Return the content of the agent's kill.json.

        Return None if the file is missing or no JSON object. A missing file means that the engine
        or the system has sent the SIGTERM.
        """
        try:
            # A trial may have put a pipe there, which must not block.
            descriptor = os.open(f"{self.path}/kill.json", os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                request = json.load(file)
        except (OSError, ValueError, RecursionError):
            return None
        return request if isinstance(request, dict) else None

    def grace_seconds(self, request: Mapping[str, Any] | None) -> float:
        """Return the seconds until SIGKILL: the request's, or without a request the launch's.

        Return 0 for an invalid request. Without a request, also return 0 if the trial has removed
        launch.json or the launch names no time.
        """
        if request is None:
            is_left = os.path.exists(f"{self.path}/launch.json")  # noqa: PTH110
            return float(self.launch.get("unasked_grace_seconds", 0)) if is_left else 0.0
        try:
            return float(request["grace_ms"]) / 1000
        except (ValueError, KeyError, TypeError):
            return 0.0

    def try_to_record(self, name: str, content: Mapping[str, object]) -> bool:
        """Write `content` as JSON to the file `name`, atomically. Replace an earlier record.

        Return False after an OSError, for example on a full disk, and set `is_record_impossible`.
        """
        new_file = f"{self.path}/.{name}.new"
        try:
            with open(new_file, "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump(content, file)
            os.replace(new_file, f"{self.path}/{name}")  # noqa: PTH105
        except OSError as error:
            self.is_record_impossible = error.errno in IN_THE_WAY
            return False
        return True
