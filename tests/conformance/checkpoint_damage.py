"""The contract of damaged checkpoints for every store.

A suite is a subclass with a `storage` fixture, the `storage` of a trial's specification. Trials and
the server notice damage, and accept the checkpoint again after the files are repaired.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.manifests import parse_manifest
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.queries.checkpoint_files import find_missing_file
from detcloud.core import CheckpointContext, CheckpointDamaged, CheckpointReference
from detcloud.core.checkpoint_writer import METADATA
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import CheckpointStore, build_store

CONTENTS = {"weights.pth": bytes(range(256)) * 400, "deep/er/part 0": b"0123456789", "empty": b""}


class StoredCheckpoint:
    """A checkpoint of a trial, as the trial's next run and the server see the files."""

    def __init__(self, storage: dict[str, str], folder: Path) -> None:
        self.store: CheckpointStore = build_store(storage)
        self.reports: list[dict[str, Any]] = []
        self._storage = storage
        self._folder = folder
        for name, content in CONTENTS.items():
            (folder / "trained" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "trained" / name).write_bytes(content)
        writer = self._context(TrialSpec(experiment_id=3, trial_id=4, epoch=1), self.store)
        # Without other files of the trial, a folder may be a missing mount.
        self.store.put("3/4/1/another/file", folder / "trained" / "empty")
        writer.upload(folder / "trained", {"steps_completed": 7})
        line = self.reports.pop()
        self.reports.clear()
        self.reference = CheckpointReference(
            line["uuid"], 4, line["path"], 7, line["manifest_sha256"]
        )
        self.contents = {name: self.read(name) for name in (MANIFEST, METADATA, *CONTENTS)}

    def read(self, name: str) -> bytes:
        self.store.get(f"{self.reference.path}/{name}", self._folder / "read")
        return (self._folder / "read").read_bytes()

    def lose(self, name: str) -> None:
        self.store.delete(f"{self.reference.path}/{name}")

    def replace(self, name: str, content: bytes) -> None:
        self.lose(name)
        (self._folder / "other").write_bytes(content)
        self.store.put(f"{self.reference.path}/{name}", self._folder / "other")

    def restore(self, store: CheckpointStore | None = None) -> dict[str, bytes]:
        """Return the files that the trial's next run gets."""
        spec = TrialSpec(experiment_id=3, trial_id=4, epoch=2, latest_checkpoint=self.reference)
        context = self._context(spec, store or self.store)
        with context.restore_path(self.reference) as folder:
            return {name: (folder / name).read_bytes() for name in CONTENTS}

    def find_missing(self) -> str:
        """Return the first file that is missing or has the wrong size on the server, or ""."""
        files = open_checkpoint_files(self._storage)
        stored = dict(files.list_files(tuple(self.reference.path.split("/"))))
        listed = parse_manifest(self.contents[MANIFEST], str(self.reference.manifest_sha256))
        return find_missing_file(listed, stored)

    def _context(self, spec: TrialSpec, store: CheckpointStore) -> CheckpointContext:
        return CheckpointContext(spec, store, self._report, on_cluster=True)

    def _report(self, kind: str, **fields: object) -> None:
        self.reports.append({"kind": kind, **fields})


def lose_a_file(stored: StoredCheckpoint) -> None:
    stored.lose("deep/er/part 0")


def cut_a_file_short(stored: StoredCheckpoint) -> None:
    stored.replace("weights.pth", CONTENTS["weights.pth"][:-1])


def empty_a_file(stored: StoredCheckpoint) -> None:
    stored.replace("weights.pth", b"")


def change_a_byte(stored: StoredCheckpoint) -> None:
    content = bytearray(CONTENTS["weights.pth"])
    content[70_000] ^= 1
    stored.replace("weights.pth", bytes(content))


def lose_the_manifest(stored: StoredCheckpoint) -> None:
    stored.lose(MANIFEST)


def change_the_manifest(stored: StoredCheckpoint) -> None:
    changed = json.loads(stored.contents[MANIFEST])
    changed["files"]["weights.pth"]["size"] = 4
    stored.replace(MANIFEST, json.dumps(changed).encode())


def lose_all_files(stored: StoredCheckpoint) -> None:
    for name in stored.contents:
        stored.lose(name)


HARMS = [
    (lose_a_file, "the store has no deep/er/part 0", "deep/er/part 0 is not there"),
    (cut_a_file_short, "weights.pth is not the file that was stored: 102399 bytes", "102399 bytes"),
    (empty_a_file, "weights.pth is not the file that was stored: 0 bytes", "0 bytes there"),
    # Listings do not show this damage: only a reader notices.
    (change_a_byte, "weights.pth is not the file that was stored: 102400 bytes", ""),
    (lose_the_manifest, "the store has no manifest.json", ""),
    (change_the_manifest, "but the cluster recorded", ""),
    (lose_all_files, "the store has no manifest.json", "is not there"),
]


class CheckpointDamageContract:
    @pytest.fixture
    def stored_checkpoint(self, storage: dict[str, str], tmp_path: Path) -> StoredCheckpoint:
        return StoredCheckpoint(storage, tmp_path)

    @pytest.mark.parametrize(
        ("harm", "cause", "listed"), HARMS, ids=lambda value: getattr(value, "__name__", "")
    )
    def test_damage_is_reported_until_the_files_are_repaired(
        self,
        stored_checkpoint: StoredCheckpoint,
        harm: Callable[[StoredCheckpoint], None],
        cause: str,
        listed: str,
    ) -> None:
        stored = stored_checkpoint
        assert stored.find_missing() == ""
        harm(stored)
        with pytest.raises(CheckpointDamaged):
            stored.restore()
        (line,) = stored.reports
        assert (line["kind"], line["uuid"]) == ("checkpoint_damage", stored.reference.uuid)
        assert cause in line["message"]
        assert listed in stored.find_missing()
        assert bool(stored.find_missing()) == bool(listed)
        for name, content in stored.contents.items():
            stored.replace(name, content)
        assert stored.restore() == CONTENTS
