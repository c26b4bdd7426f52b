"""The handle of a checkpoint, without the methods that return other handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detcloud.client.records import (
    CheckpointFile,
    CheckpointHolders,
    CheckpointPin,
    DeletionPreview,
    FileFinding,
)
from detcloud.client.resource import Field, Resource


class CheckpointHandle(Resource):
    """The fields of a checkpoint, and the methods that return no other handle."""

    uuid = Field[str]("The UUID; any unique beginning of the UUID names the checkpoint.")
    trial_id = Field[int]("The id of the trial that stored the checkpoint.")
    experiment_id = Field[int]("The id of the trial's experiment.")
    steps_completed = Field[int]("The number of batches trained before the checkpoint was stored.")
    state = Field[str]("The state: COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING or DELETED.")
    size_bytes = Field[int]("The total size of the files, in bytes.")
    metadata = Field[dict[str, Any]](
        "The metadata from the training code, with the changes of users; empty without any."
    )
    metric = Field[float | None](
        "The searcher's metric after `steps_completed` batches; None without a validation."
    )
    created_ms = Field[int]("The time at which the checkpoint was stored, in epoch milliseconds.")
    uploaded_by = Field[str | None](
        "The user who uploaded the checkpoint; None if a trial stored the checkpoint."
    )
    pinned = Field[bool](
        "Whether `pinned_by` has an entry, which prevents collection and deletion."
    )
    pinned_by = Field[CheckpointHolders](
        "The users, model versions and experiments that keep the checkpoint."
    )

    damage = Field[str](
        "The damage that a run of the trial found; empty for an undamaged checkpoint."
    )
    deleted_patterns = Field[list[str]](
        "The patterns of the deleted files; empty if no part was deleted."
    )

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(f"/checkpoints/{self.uuid}")

    def files(self) -> list[CheckpointFile]:
        """Return the checkpoint's files. Their URLs need no token and expire after 15 minutes."""
        return list(self._client.records(f"/checkpoints/{self.uuid}/files", CheckpointFile))

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replace all metadata of the checkpoint. The files stay as they are.

        Args:
            metadata: JSON data of at most 16 KiB.
            expected_revision: the `metadata_revision` that the change is based on. None replaces
                the metadata whatever has changed since.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the checkpoint has another revision.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(f"/checkpoints/{self.uuid}", body)

    def delete(self, patterns: Sequence[str] = ()) -> None:
        """Delete the checkpoint's files. The state is DELETING until all files are deleted.

        If patterns leave other files, these files can be downloaded, the state is
        PARTIALLY_DELETED, and no trial can start from the checkpoint.

        Args:
            patterns: delete only files that match a pattern, such as `optimizer/**`. Empty for all
                files.

        Raises:
            detcloud.shared.http.ApiError: no file matches, patterns are given for a DAMAGED
                checkpoint, the checkpoint is the latest of a trial that has not ended, or a pin, a
                model version or another experiment keeps it.
        """
        self.data = self._client.delete(f"/checkpoints/{self.uuid}", glob=list(patterns))

    def preview_deletion(self, patterns: Sequence[str] = ()) -> DeletionPreview:
        """Return the number and bytes of the files that `delete` would delete, without deleting
        any.

        `problem` is the reason why `delete` would be refused, or empty.

        Args:
            patterns: as for `delete`.
        """
        preview: DeletionPreview = self._client.get(
            f"/checkpoints/{self.uuid}/deletion", glob=list(patterns)
        )
        return preview

    def pin(self) -> CheckpointPin:
        """Protect the checkpoint from deletion until `unpin`, and return all holders of the
        checkpoint.

        A repeated call changes nothing. Any user may pin any checkpoint.

        Raises:
            detcloud.shared.http.ApiError: the checkpoint is deleted, or 100 users have pinned it.
        """
        return self._keep_pin(self._client.post(f"/checkpoints/{self.uuid}/pin"))

    def unpin(self) -> CheckpointPin:
        """Remove the caller's pin, or all users' pins if the caller is an admin.

        Return everything that still keeps the checkpoint.

        Raises:
            detcloud.shared.http.ApiError: `forbidden`, if only other users have pinned it.
        """
        return self._keep_pin(self._client.delete(f"/checkpoints/{self.uuid}/pin"))

    def _keep_pin(self, pin: CheckpointPin) -> CheckpointPin:
        """Update `pinned` and `pinned_by` of this handle from the answer `pin`, and return `pin`.

        `pinned` becomes True if anything holds the checkpoint.
        """
        holders = {name: value for name, value in pin.items() if name != "uuid"}
        self.data = {**self.data, "pinned": any(holders.values()), "pinned_by": holders}
        return pin

    def download(
        self,
        destination: str | Path,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        patterns: Sequence[str] = (),
        excluded: Sequence[str] = (),
        mode: str = "master",
    ) -> Path:
        """Download files into a temporary folder, verify the files, and rename the folder.

        Return `destination`, the new name. After an error the temporary folder is deleted.

        Args:
            destination: a path that does not exist yet.
            on_progress: called with the bytes received and the total bytes.
            patterns: download only files that match a pattern, such as `**/*.pth`, by the rules of
                Python's `glob`. Empty for all files.
            excluded: skip files that match one of these patterns.
            mode: `master` uses URLs from the cluster. `direct` reads the store itself, with the
                credentials in this process's environment. `auto` tries `direct`, then `master`.

        Raises:
            DetcloudError: `destination` exists or cannot be written, no file matches, a path is
                unsafe, a file has a wrong size or digest, `mode` is another word, or the store
                refuses these credentials.
        """
        from detcloud.client.direct_download import download_checkpoint
        from detcloud.client.download import select_files

        folder = Path(destination)
        files = select_files(self.files(), patterns, excluded)
        download_checkpoint(self._client, self.uuid, files, folder, on_progress, mode, self.files)
        return folder

    def verify(self, on_progress: Callable[[int, int], None] | None = None) -> list[FileFinding]:
        """Read every stored file, compare the content with the record, and return a finding per
        file.

        Nothing is kept and nothing changes. If a DAMAGED checkpoint has only OK files,
        `clear_damage` makes it COMPLETED again.

        Args:
            on_progress: called with the bytes read and the total bytes.

        Raises:
            DetcloudError: the checkpoint is deleted, its list of files is damaged, or its store
                does not answer.
        """
        from detcloud.client.verification import verify_files

        tell = on_progress or (lambda done, total: None)
        return verify_files(self._client.http, self.files(), tell, self.files)

    def clear_damage(self) -> None:
        """Make a DAMAGED checkpoint COMPLETED again, after `verify` has found every file OK.

        The trial resumes from this checkpoint again, unless a run has begun from another one.
        Nothing happens to a checkpoint that is not damaged.

        Raises:
            detcloud.shared.http.ApiError: the experiment is another user's, or a file is missing or
                has another size.
        """
        self.data = self._client.delete(f"/checkpoints/{self.uuid}/damage")
