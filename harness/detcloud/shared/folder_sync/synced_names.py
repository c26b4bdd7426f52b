"""The choice of the paths that a synchronisation includes, by rules that both machines know.

The rules are regular expressions in groups, because a trial's image may lack the package that reads
`.detignore`. Both ends decide with this module. If their decisions differed, a left-out file of the
trial would count as deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from detcloud.shared.archive_names import fold_part
from detcloud.shared.folder_sync.plan import parents_of

IGNORE_FILE = ".detignore"
TEMPORARY_PREFIX = ".detcloud-sync-"
"""The beginning of the names of unfinished files, which no listing contains."""
PROGRAM_FOLDERS = frozenset((".git", ".vscode", ".idea"))
"""Folders whose files programs of the user's machine run. A hostile trial must not write there,
also with spellings that a file system treats as equal.
"""
DECISIONS_MAX = 300_000
_FOLDER_MARK = "ps_d"
"""The group of a regular expression that matches the slash after a folder's name."""

Rule = tuple[bool, str]
"""Whether a rule excludes the paths that match, and its regular expression."""


class SyncedNames:
    """A function that decides which paths of a folder are synchronised."""

    def __init__(self, groups: Sequence[Sequence[Rule]] = ()) -> None:
        """Create the function from rules in groups. A path is excluded if any group excludes it.

        Raises:
            ValueError: a rule has no valid regular expression.
        """
        self.groups: list[list[Rule]] = [[(bool(one), text) for one, text in g] for g in groups]
        """The rules, as JSON can represent them."""
        try:
            self._compiled = [[(one, re.compile(text)) for one, text in g] for g in self.groups]
        except re.error as error:
            raise ValueError(f"a rule is no regular expression: {error}") from None
        self._decisions: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        """Return whether a path is synchronised, if the path's folders are. A folder's path ends
        with `/`.
        """
        decision = self._decisions.get(name)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[name] = self._decide(name)
        return decision

    def allows_file(self, name: str) -> bool:
        """Return whether a file is synchronised, with regard to all folders of the path."""
        return self(name) and all(self(f"{parent}/") for parent in parents_of(name))

    def _decide(self, name: str) -> bool:
        parts = [fold_part(part) for part in name.rstrip("/").split("/")]
        if PROGRAM_FOLDERS & set(parts) or parts == [IGNORE_FILE]:
            return False
        if any(part.startswith(TEMPORARY_PREFIX) for part in parts):
            return False
        return not any(_excludes(group, name) for group in self._compiled)


def parse_groups(value: Any) -> SyncedNames:
    """Return the function of rules in a decoded JSON value.

    Raises:
        ValueError: the value is no list of lists of rules.
    """
    try:
        groups = [[(bool(one), str(text)) for one, text in group] for group in value]
    except (TypeError, ValueError):
        raise ValueError("the rules of names are invalid") from None
    return SyncedNames(groups)


def _excludes(group: Sequence[tuple[bool, re.Pattern[str]]], name: str) -> bool:
    """Return whether the last rule that counts excludes a path.

    A rule that matches the path itself counts more than a rule that matches a folder above it.
    """
    by_folder = None
    for is_excluding, expression in reversed(group):
        match = expression.search(name)
        if match is None:
            continue
        if not match.groupdict().get(_FOLDER_MARK):
            return is_excluding
        if by_folder is None:
            by_folder = is_excluding
    return bool(by_folder)
