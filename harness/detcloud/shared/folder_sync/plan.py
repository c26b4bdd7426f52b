"""The decision of a synchronisation: two listings of a folder become actions, without any I/O.

`here` is the folder of the user's machine, `there` the folder of the trial. A third listing has the
common contents after the last synchronisation, so that a new file and a deleted file differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from detcloud.shared.archive_names import fold_part

COPY_SUFFIX = ".detcloud-theirs"
"""The end of the name of a copy, which keeps the trial's content of a file in conflict."""
FILE_AND_FOLDER = "is a file on one side and a folder on the other"
CLASHING = "differs from another name only in a way that some file systems ignore, such as case"


@dataclass(frozen=True)
class Listing:
    """The content of a folder."""

    files: Mapping[str, str]
    """The SHA-256 of each file, by the path relative to the folder."""
    unknown: frozenset[str] = frozenset()
    """The paths of links, special files, large files and unreadable files or folders. No action
    changes such a path or a path below it, and a missing file below it does not count as deleted.
    """


@dataclass(frozen=True)
class Fetch:
    """Copy a file of the trial to the user's machine."""

    name: str
    digest: str
    """The SHA-256 of the new content."""
    replaced: str | None
    """The SHA-256 of the content that the action replaces. None for a new file."""


@dataclass(frozen=True)
class Send:
    """Copy a file of the user's machine to the trial."""

    name: str
    digest: str
    """The SHA-256 of the new content."""
    replaced: str | None
    """The SHA-256 of the content that the action replaces. None for a new file."""


@dataclass(frozen=True)
class DeleteHere:
    """Delete a file of the user's machine, because the trial has deleted the file."""

    name: str
    digest: str
    """The SHA-256 of the content that may be deleted."""


@dataclass(frozen=True)
class DeleteThere:
    """Delete a file of the trial, because the user has deleted the file."""

    name: str
    digest: str
    """The SHA-256 of the content that may be deleted."""


@dataclass(frozen=True)
class KeepBoth:
    """Keep the trial's content as the copy `copy` on the user's machine, then send the user's file.

    The file must not be sent before the copy is complete.
    """

    name: str
    digest: str
    """The SHA-256 of the user's content."""
    replaced: str
    """The SHA-256 of the trial's content."""
    copy: str
    """The path of the copy."""
    is_copied: bool
    """Whether the copy already exists with the trial's content."""


Action = Fetch | Send | DeleteHere | DeleteThere | KeepBoth


@dataclass(frozen=True)
class Plan:
    """The result of `plan_actions`."""

    common: Mapping[str, str]
    """The SHA-256 of each file on which both folders agreed last, without the actions' effects."""
    actions: tuple[Action, ...]
    """The actions in order: deletions, then the other actions by name."""
    blocked: Mapping[str, str]
    """The paths that get no action, with the reasons: FILE_AND_FOLDER or CLASHING."""


def plan_actions(common: Mapping[str, str], here: Listing, there: Listing) -> Plan:
    """Return the actions that make two folders equal.

    - A file that one side has changed or deleted is changed or deleted on the other side.
    - A changed file wins against a deletion.
    - If both sides have changed a file, both contents are kept: see KeepBoth.

    Args:
        common: the SHA-256 of each file after the last synchronisation, by name. Empty at first.
        here: the folder of the user's machine.
        there: the folder of the trial.
    """
    unknown = here.unknown | there.unknown
    known = {name: digest for name, digest in common.items() if _is_unknown(name, unknown)}
    copies = _CopyNames(common, here, there, unknown)
    chosen: list[Action] = []
    for name in sorted({*common, *here.files, *there.files}):
        if _is_unknown(name, unknown):
            continue
        before, mine, theirs = common.get(name), here.files.get(name), there.files.get(name)
        # Only a file that is missing on both sides leaves the common contents.
        if (agreed := mine if mine == theirs else before) is not None:
            known[name] = agreed
        if mine != theirs:
            chosen.append(_action_of(name, before, mine, theirs, copies))
    blocked = _blocked_names(chosen, here, there, unknown) if chosen else {}
    actions = [action for action in chosen if action.name not in blocked]
    # A file can take the place of a folder only after the folder's files were deleted.
    actions.sort(key=lambda action: not isinstance(action, DeleteHere | DeleteThere))
    return Plan(known, tuple(actions), blocked)


def parents_of(name: str) -> Iterator[str]:
    """Yield the paths of the folders above a path, the nearest first."""
    while (name := name.rpartition("/")[0]) != "":
        yield name


def _is_unknown(name: str, unknown: frozenset[str]) -> bool:
    return name in unknown or any(parent in unknown for parent in parents_of(name))


def _action_of(
    name: str, before: str | None, mine: str | None, theirs: str | None, copies: _CopyNames
) -> Action:
    """Return the action for a file with different contents.

    Args:
        before: the common content after the last synchronisation.
        mine: the content on the user's machine. None for a missing file.
        theirs: the content in the trial's folder. None for a missing file.
        copies: chooses the name of a copy.
    """
    if mine is None:
        assert theirs is not None
        return DeleteThere(name, theirs) if theirs == before else Fetch(name, theirs, None)
    if theirs is None:
        return DeleteHere(name, mine) if mine == before else Send(name, mine, None)
    if mine == before:
        return Fetch(name, theirs, mine)
    if theirs == before:
        return Send(name, mine, theirs)
    copy, is_copied = copies.choose(name, theirs)
    return KeepBoth(name, mine, theirs, copy, is_copied)


class _CopyNames:
    """The choice of names for copies of files in conflict."""

    def __init__(
        self, common: Mapping[str, str], here: Listing, there: Listing, unknown: frozenset[str]
    ) -> None:
        """Args: the arguments of `plan_actions`, and the unknown paths of both folders."""
        self._common, self._here, self._there = common, here, there
        self._unknown = unknown
        # The paths of files and folders, which a new copy must not have. Empty before the first
        # conflict.
        self._taken: set[str] = set()

    def choose(self, name: str, theirs: str) -> tuple[str, bool]:
        """Return the name of a copy of `name`, and whether the copy has the content `theirs`."""
        if not self._taken:
            paths = {*self._here.files, *self._there.files, *self._unknown}
            self._taken = paths | {parent for path in paths for parent in parents_of(path)}
        for copy in _copy_names(name):
            if self._is_kept(copy, theirs):
                return copy, True
            if copy not in self._taken:
                self._taken.add(copy)
                return copy, False
        raise AssertionError("the names of copies have no end")

    def _is_kept(self, copy: str, theirs: str) -> bool:
        """Return whether a file here has the content, and no action changes the file."""
        there = self._there.files.get(copy)
        is_stable = there == theirs or (there is None and copy not in self._common)
        return is_stable and self._here.files.get(copy) == theirs


def _copy_names(name: str) -> Iterator[str]:
    """Yield possible names of a copy, without an end."""
    yield f"{name}{COPY_SUFFIX}"
    for number in itertools.count(2):
        yield f"{name}{COPY_SUFFIX}-{number}"


def _blocked_names(
    actions: Iterable[Action], here: Listing, there: Listing, unknown: frozenset[str]
) -> dict[str, str]:
    """Return the names of the actions that are impossible, with the reasons.

    A path may be both a file and a folder after the actions. Or two spellings may be the same path
    on a file system that ignores case, so that one file would replace the other.
    """
    actions = list(actions)
    gone = {action.name for action in actions if isinstance(action, DeleteHere | DeleteThere)}
    written = {action.name: action.name for action in actions if action.name not in gone}
    copies = {action.copy: action.name for action in actions if isinstance(action, KeepBoth)}
    files = ({*here.files, *there.files} - gone) | copies.keys()
    folders = {parent for name in (*files, *unknown) for parent in parents_of(name)}
    clashing = _clashing_paths(files | folders)
    blocked = {}
    for path, name in (*written.items(), *copies.items()):
        parents = set(parents_of(path))
        if path in folders or not parents.isdisjoint(files):
            blocked[name] = FILE_AND_FOLDER
        elif path in clashing or not parents.isdisjoint(clashing):
            blocked[name] = CLASHING
    return blocked


def _clashing_paths(paths: Iterable[str]) -> set[str]:
    """Return the paths that some file system treats as equal to another path in `paths`."""
    folded: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for path in paths:
        parts = path.split("/")
        for part in parts:
            if part not in folded:
                folded[part] = fold_part(part)
        groups.setdefault("/".join(folded[part] for part in parts), []).append(path)
    return {path for group in groups.values() if len(group) > 1 for path in group}
