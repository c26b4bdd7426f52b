"""The synchronisation of a folder of this machine with the working directory of a trial."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from detcloud.client.ignore_rules import IgnoreRules
from detcloud.client.trial_folder import TrialFolder
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_sync.folder import (
    LINK,
    SPECIAL,
    FileEntry,
    FileRefused,
    FolderContent,
    SyncedFolder,
)
from detcloud.shared.folder_sync.plan import (
    Action,
    DeleteHere,
    DeleteThere,
    Fetch,
    KeepBoth,
    Listing,
    Plan,
    Send,
    plan_actions,
)

FETCHED_BYTES_MAX = 2_000_000_000
"""The most bytes of files from the trial that are on this machine at once."""
LAST_ROUNDS = 5
FAILURES_SHOWN = 3
"""The failed attempts after which a failure is shown. Many files change only for a moment."""
RETRY_SECONDS_MAX = 120.0
TRANSFER_SHARE = 10.0
"""The least time between two transfers of a file, as a multiple of the first transfer's time. So a
large log that grows all the time does not fill the connection.
"""
NAMES_SHOWN = 5
SENTENCES_MAX = 50
"""The most sentences for the user, because a hostile machine could cause them without an end."""


@dataclass
class _Delay:
    """The earliest time of the next attempt to transfer a file."""

    until: float
    failures: int = 0
    """The number of failed attempts since the last success."""


class FolderSync:
    """The state of two folders that are synchronised. Only one thread may use the object."""

    def __init__(
        self,
        here: SyncedFolder,
        there: TrialFolder,
        *,
        rules: IgnoreRules,
        backups: Path,
        report: Callable[[str], None],
        fetched_bytes_max: int = FETCHED_BYTES_MAX,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object without reading a folder.

        Args:
            here: the folder of this machine.
            there: the folder of the trial.
            rules: the rules of both folders, which follow `.detignore` of this machine.
            backups: a folder for contents of the user that the trial replaces or deletes.
            report: called with sentences for the user.
            fetched_bytes_max: the most bytes of files from the trial that are here at once.
            now: returns the time in seconds.
        """
        self._here, self._there, self._rules = here, there, rules
        self._backups, self._write_sentence = backups, report
        self._sentences = 0
        self._fetched_bytes_max = fetched_bytes_max
        self._now = now
        self.common: dict[str, str] = {}
        """The SHA-256 of each file on which both folders agreed last."""
        self.missing: list[str] = []
        """The files of the trial whose contents this machine lacks after the last round."""
        self._there_content: FolderContent | None = None
        # The files that the trial sent, by name. A fetched file is not backed up.
        self._fetched: dict[str, FileEntry] = {}
        self._backup_count, self._has_reported_backups = 0, False
        # The last listings, if no difference was left.
        self._equal: tuple[FolderContent, FolderContent] | None = None
        self._shown: set[str] = set()
        self._delays: dict[str, _Delay] = {}

    def adopt(self, uploaded: Mapping[str, str]) -> None:
        """Set the common contents after an upload of the folder of this machine.

        A file that the trial lacks does not count as deleted.

        Args:
            uploaded: the SHA-256 of each file before the upload, by name.

        Raises:
            FileRefused: the trial's folder cannot be listed.
            FolderLinkBroken: the connection to the trial's folder has ended.
        """
        self._refresh_rules()
        self._there_content = self._there.scan(self._rules.names)
        found = self._there_content.files
        self.common = {name: digest for name, digest in uploaded.items() if name in found}

    def run_round(self, *, is_fresh: bool = False, is_last: bool = False) -> bool:
        """Compare both folders and transfer the differences. Return whether any were tried.

        Failures of single files are reported, and tried again by later rounds.

        Args:
            is_fresh: whether the trial's folder is listed again without a notice of a change.
            is_last: whether files are transferred without delays.

        Raises:
            FileRefused: a folder cannot be listed.
            FolderReplaced: another folder has the path of this machine's folder.
            FolderLinkBroken: the connection to the trial's folder has ended.
            OSError: the folder of this machine cannot be read.
        """
        self._refresh_rules()
        here = self._here.scan()
        if self._there_content is None or is_fresh:
            self._there_content = self._there.scan(self._rules.names)
        there = self._there_content
        if self._equal is not None and self._equal[0] == here and self._equal[1] is there:
            return False
        plan = plan_actions(self.common, _listing_of(here), _listing_of(there))
        self.common = dict(plan.common)
        self._report_left_out({**there.unknown, **here.unknown, **plan.blocked})
        now = self._now()
        due = [
            action
            for action in plan.actions
            if is_last or (delay := self._delays.get(action.name)) is None or delay.until <= now
        ]
        done = {action for action in due if self._try(action, here, there)}
        self.missing = _missing_names(plan, done, here, there)
        self._equal = None if plan.actions or plan.blocked else (here, there)
        if due:
            self._there_content = None
        return bool(due)

    def wait(self, seconds: float, wake: socket.socket) -> None:
        """Wait until the trial's folder has changed or `wake` is readable, at most for a time.

        Raises:
            FolderLinkBroken: the connection to the trial's folder has ended.
        """
        if self._there.wait_for_change(seconds, wake):
            self._there_content = None

    def finish(self) -> bool:
        """Run rounds with fresh listings until both folders are equal, at most LAST_ROUNDS.

        Return whether this machine has all contents of the trial, except for excluded files, links
        and special files. Raises errors as `run_round` does.
        """
        for _ in range(LAST_ROUNDS):
            if not self.run_round(is_fresh=True, is_last=True):
                break
        return not self.missing

    def _report(self, text: str) -> None:
        """Show a sentence to the user, at most SENTENCES_MAX.

        The trial's names and reasons must not begin a new line of the terminal.
        """
        text = "".join(one if one.isprintable() else "?" for one in text)
        self._sentences += 1
        if self._sentences < SENTENCES_MAX:
            self._write_sentence(text)
        elif self._sentences == SENTENCES_MAX:
            self._write_sentence("further sentences about files are left out")

    def _refresh_rules(self) -> None:
        """Read a changed `.detignore` again. Report an invalid file."""
        try:
            if not self._rules.refresh():
                return
        except DetcloudError as error:
            self._report(f"{error}; the former rules stay")
            return
        self._here.is_synced = self._rules.names
        # The listing was filtered by the former rules.
        self._there_content = None

    def _try(self, action: Action, here: FolderContent, there: FolderContent) -> bool:
        """Carry out an action, and return whether the action succeeded. Delay the next attempt."""
        delay = self._delays.get(action.name) or _Delay(0)
        begun = self._now()
        try:
            self._apply(action, here, there)
        except (FileRefused, ArchiveInvalid, OSError) as error:
            delay.failures += 1
            if delay.failures == FAILURES_SHOWN:
                reason = getattr(error, "strerror", None) or getattr(error, "reason", str(error))
                self._report(f"{action.name} is not kept the same: {reason}")
            delay.until = self._now() + min(2.0**delay.failures, RETRY_SECONDS_MAX)
            self._delays[action.name] = delay
            return False
        ended = self._now()
        self._delays[action.name] = _Delay(ended + TRANSFER_SHARE * (ended - begun))
        return True

    def _apply(self, action: Action, here: FolderContent, there: FolderContent) -> None:
        """Transfer or delete a file, and update the common contents."""
        name = action.name
        match action:
            case Fetch(_, _, replaced):
                self.common[name] = self._fetch(name, name, there.files[name], replaced)
            case Send(_, _, replaced):
                self.common[name] = self._send(name, here.files[name], replaced)
            case KeepBoth(_, _, replaced, copy, is_copied):
                if not is_copied:
                    replaced = self._fetch(name, copy, there.files[name], None)
                    self._report(
                        f"{name} was changed here and on the machine; the machine's file is {copy}"
                    )
                self.common[name] = self._send(name, here.files[name], replaced)
            case DeleteHere(_, digest):
                with self._backup(name, digest) as backup:
                    self._here.delete(name, digest, backup=backup)
                self._fetched.pop(name, None)
                del self.common[name]
            case DeleteThere(_, digest):
                self._there.delete(name, digest)
                self._fetched.pop(name, None)
                del self.common[name]

    def _fetch(self, source: str, name: str, entry: FileEntry, replaced: str | None) -> str:
        """Write the trial's file `source` as the file `name` of this machine. Return the SHA-256 of
        the content.
        """
        others = sum(one.size for key, one in self._fetched.items() if key != name)
        if others + entry.size > self._fetched_bytes_max:
            raise FileRefused(
                f"the machine's files exceed {self._fetched_bytes_max // 1_000_000} MB"
            )
        blocks = self._there.fetch(source, entry)
        try:
            with self._backup(name, replaced) as backup:
                digest = self._here.write(
                    name,
                    blocks,
                    replaced=replaced,
                    is_executable=entry.is_executable,
                    backup=backup,
                )
        finally:
            _read_rest(blocks)
        self._fetched[name] = FileEntry(digest, entry.size, entry.is_executable)
        return digest

    def _send(self, name: str, entry: FileEntry, replaced: str | None) -> str:
        """Write a file of this machine as the trial's file. Return the SHA-256 of the content."""
        blocks = self._here.read(name, entry.size)
        digest = self._there.send(
            name, blocks, replaced=replaced, is_executable=entry.is_executable
        )
        self._fetched.pop(name, None)
        return digest

    @contextlib.contextmanager
    def _backup(self, name: str, digest: str | None) -> Iterator[Path | None]:
        """Provide the path of a backup of a file that the block replaces or deletes.

        Provide None without a file, and for a file that the trial has written. Delete the backup if
        the block fails.
        """
        known = self._fetched.get(name)
        if digest is None or (known is not None and known.digest == digest):
            yield None
            return
        self._backup_count += 1
        backup = self._backups / str(self._backup_count) / name
        try:
            yield backup
        except BaseException:
            backup.unlink(missing_ok=True)
            raise
        if not self._has_reported_backups:
            self._has_reported_backups = True
            self._report(
                f"the machine replaces or deletes files of this folder, such as {name}; the former "
                f"contents are kept in {self._backups}"
            )

    def _report_left_out(self, reasons: Mapping[str, str]) -> None:
        """Report each left-out path once."""
        new = [name for name in sorted(reasons) if name not in self._shown]
        self._shown.update(new)
        if not new:
            return
        names = ", ".join(f"{name} ({reasons[name]})" for name in new[:NAMES_SHOWN])
        more = f" and {len(new) - NAMES_SHOWN} more" if len(new) > NAMES_SHOWN else ""
        self._report(f"not kept the same: {names}{more}")


def _listing_of(content: FolderContent) -> Listing:
    digests = {name: entry.digest for name, entry in content.files.items()}
    return Listing(digests, frozenset(content.unknown))


def _missing_names(
    plan: Plan, done: set[Action], here: FolderContent, there: FolderContent
) -> list[str]:
    """Return the files of the trial that this machine lacks after the actions `done`.

    Large files and files with invalid names are included. A result of long work must not end with
    the shell.
    """
    missing = {
        action.name
        for action in plan.actions
        if action not in done
        and (isinstance(action, Fetch) or (isinstance(action, KeepBoth) and not action.is_copied))
    }
    mine = {name: entry.digest for name, entry in here.files.items()}
    blocked = {
        name
        for name in plan.blocked
        if name in there.files and mine.get(name) != there.files[name].digest
    }
    left_out = {
        name
        for name, reason in there.unknown.items()
        if reason not in (LINK, SPECIAL) and name not in here.files and name not in here.unknown
    }
    return sorted(missing | blocked | left_out)


def _read_rest(blocks: Iterator[bytes]) -> None:
    """Read an answer to the end, so that the next answer can be read."""
    with contextlib.suppress(FileRefused):
        for _ in blocks:
            pass
