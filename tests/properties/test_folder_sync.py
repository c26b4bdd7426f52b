"""Two folders that change at random: no content is lost, and both become equal."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.shared.folder_sync.plan import (
    DeleteHere,
    DeleteThere,
    Fetch,
    KeepBoth,
    Listing,
    Send,
    plan_actions,
)
from tests.unit.client.folder_pair import Pair

NAMES = ("a", "b/c", "b/d", "e.detcloud-theirs", "e")
ROUNDS_MAX = 3
"""The first round transfers the changes, the second the copies of conflicts, the third nothing."""

edits = st.tuples(
    st.booleans(), st.sampled_from(NAMES), st.one_of(st.none(), st.sampled_from("1234"))
)
"""Whether the user's machine changes, the file, and its new content. None deletes the file."""


@dataclass
class Folders:
    """Two folders in memory, whose files are their digests."""

    here: dict[str, str] = field(default_factory=dict)
    there: dict[str, str] = field(default_factory=dict)
    common: dict[str, str] = field(default_factory=dict)

    def edit(self, is_here: bool, name: str, content: str | None) -> None:
        folder = self.here if is_here else self.there
        if content is None:
            folder.pop(name, None)
        else:
            folder[name] = content

    def run_round(self, applied_max: int = 1000) -> int:
        """Apply at most some of the actions, and return the number of planned actions."""
        plan = plan_actions(self.common, Listing(self.here), Listing(self.there))
        self.common = dict(plan.common)
        for action in plan.actions[:applied_max]:
            match action:
                case Fetch(name, digest, replaced):
                    assert self.here.get(name) == replaced
                    self.here[name] = self.common[name] = digest
                case Send(name, digest, replaced):
                    assert self.there.get(name) == replaced
                    self.there[name] = self.common[name] = digest
                case DeleteHere(name, digest):
                    assert self.here.pop(name) == self.common.pop(name) == digest
                case DeleteThere(name, digest):
                    assert self.there.pop(name) == self.common.pop(name) == digest
                case KeepBoth(name, digest, replaced, copy, is_copied):
                    assert self.there[name] == replaced
                    assert is_copied == (self.here.get(copy) == replaced)
                    assert is_copied or copy not in self.here
                    self.here[copy] = replaced
                    self.there[name] = self.common[name] = digest
        return len(plan.actions)


@given(st.lists(st.tuples(edits, st.integers(0, 3)), max_size=20))
def test_folders_become_equal(steps: list[tuple[tuple[bool, str, str | None], int]]) -> None:
    folders = Folders()
    for edit, applied in steps:
        folders.edit(*edit)
        folders.run_round(applied)
    for _ in range(ROUNDS_MAX):
        if not folders.run_round():
            break
    assert folders.here == folders.there == folders.common


@given(st.lists(edits, max_size=20), st.lists(edits, max_size=20))
def test_content_that_only_one_side_has_is_never_lost(
    first: list[tuple[bool, str, str | None]], second: list[tuple[bool, str, str | None]]
) -> None:
    folders = Folders()
    for edit in first:
        folders.edit(*edit)
    for _ in range(ROUNDS_MAX):
        folders.run_round()
    before = dict(folders.common)
    for edit in second:
        folders.edit(*edit)
    # A content is new if its side has changed or created the file since both were equal.
    new = {
        (name, content)
        for folder in (folders.here, folders.there)
        for name, content in folder.items()
        if content != before.get(name)
    }
    for _ in range(ROUNDS_MAX):
        folders.run_round()
    for name, content in new:
        kept = {key for key, value in folders.here.items() if value == content}
        assert any(key == name or key.startswith(f"{name}.detcloud-theirs") for key in kept)


PATHS = ("a", "a/b", "c/d", "C", "c", "e.detcloud-theirs", "e", "é")
real_edits = st.tuples(
    st.booleans(), st.sampled_from(PATHS), st.sampled_from(("write", "write", "delete", "link"))
)
"""Whether the user's machine changes, the path, and the change. A file replaces a folder."""


def change(root: Path, name: str, kind: str, content: bytes) -> None:
    """Change a path of a real folder. Parents that are files or links are replaced."""
    path = root / name
    for place in (path.parent, path):
        is_tree = place.is_dir() and not place.is_symlink()
        if place != root and os.path.lexists(place) and (place == path or not is_tree):
            shutil.rmtree(place) if is_tree else place.unlink()
    if kind != "delete":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/etc/hosts") if kind == "link" else path.write_bytes(content)


@settings(max_examples=25)
@given(st.lists(st.lists(real_edits, max_size=6), max_size=4))
def test_real_folders_lose_no_content(steps: list[list[tuple[bool, str, str]]]) -> None:
    """Each content is unique, so that it can be found again under any name."""
    typed: set[bytes] = set()
    with tempfile.TemporaryDirectory() as folder, Pair(Path(folder)) as pair:
        for number, step in enumerate(steps):
            new: set[bytes] = set()
            for place, (is_here, name, kind) in enumerate(step):
                content = f"{number}.{place}".encode()
                change(pair.here if is_here else pair.there, name, kind, content)
                (typed if is_here else new).add(content)
            mine = typed & {*pair.names(pair.here).values()}
            theirs = new & {*pair.names(pair.there).values()}
            is_complete = pair.sync.finish()
            here, there = pair.names(pair.here), pair.names(pair.there)
            assert mine <= {*here.values(), *there.values(), *pair.names(pair.backups).values()}
            assert theirs <= {*here.values(), *there.values()}
            if is_complete:
                # Below a link of the user's machine, a file of the trial is left out.
                assert set(there.items()) - set(here.items()) <= linked_files(pair, there)


def linked_files(pair: Pair, files: dict[str, bytes]) -> set[tuple[str, bytes]]:
    """Return the files of the machine at or below a link of the user's machine."""
    return {
        (name, content)
        for name, content in files.items()
        for path in (name, *(str(one) for one in Path(name).parents))
        if path != "." and (pair.here / path).is_symlink()
    }
