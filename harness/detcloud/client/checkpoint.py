"""A handle on one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.records import (
    CheckpointFile,
    CheckpointHolders,
    CheckpointPin,
    DeletionPreview,
    FileFinding,
)
from detcloud.client.resource import Field, Resource

if TYPE_CHECKING:
    from detcloud.client.experiment import Experiment
    from detcloud.client.trial import Trial


class Checkpoint(Resource):
    """Files that a trial stored together."""

    uuid = Field[str]("The UUID; any unique beginning of it names the checkpoint.")
    trial_id = Field[int]("The trial that stored it.")
    experiment_id = Field[int]("The trial's experiment.")
    steps_completed = Field[int]("Batches trained before it was stored.")
    state = Field[str]("COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING or DELETED.")
    size_bytes = Field[int]("Bytes of its files.")
    metadata = Field[dict[str, Any]](
        "What the training code stored beside the files, as users edited it."
    )
    metric = Field[float | None](
        "The searcher's metric after these steps; None without a validation."
    )
    created_ms = Field[int]("When it was stored, epoch milliseconds.")
    uploaded_by = Field[str | None]("The user who uploaded it; None where its trial stored it.")
    pinned = Field[bool]("Whether something keeps it: it is neither collected nor deleted then.")
    pinned_by = Field[CheckpointHolders]("The users, model versions and experiments that keep it.")

    damage = Field[str]("How a run of its trial found it damaged; empty if none did.")
    deleted_patterns = Field[list[str]]("The patterns of the files that were deleted of it.")

    def refresh(self) -> None:
        """Asks the cluster for the present state."""
        self.data = self._client.get(f"/checkpoints/{self.uuid}")

    def trial(self) -> Trial:
        """The trial that stored it."""
        return self._client.trial(self.trial_id)

    def experiment(self) -> Experiment:
        """The trial's experiment."""
        return self._client.experiment(self.experiment_id)

    def files(self) -> list[CheckpointFile]:
        """The checkpoint's files, each with an address that serves it for 15 minutes."""
        return list(self._client.records(f"/checkpoints/{self.uuid}/files", CheckpointFile))

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replaces its metadata: 16 KiB as JSON at most. The files stay as they are.

        Args:
            expected_revision: the `metadata_revision` that it has to have still.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, where it has another one.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(f"/checkpoints/{self.uuid}", body)

    def delete(self, patterns: Sequence[str] = ()) -> None:
        """Deletes the files; the checkpoint is DELETING until they are gone. With `patterns`, as
        `optimizer/**`, it deletes only files whose path one of them matches; what is left can be
        downloaded, and no trial can start from it.

        Raises:
            detcloud.shared.http.ApiError: it is the latest of a trial that has not ended,
                something keeps it (another experiment, a model version or a pin), or no file
                matches.
        """
        self.data = self._client.delete(f"/checkpoints/{self.uuid}", glob=list(patterns))

    def preview_deletion(self, patterns: Sequence[str] = ()) -> DeletionPreview:
        """The files and bytes that `delete` would delete, and why it would be refused if so."""
        preview: DeletionPreview = self._client.get(
            f"/checkpoints/{self.uuid}/deletion", glob=list(patterns)
        )
        return preview

    def pin(self) -> CheckpointPin:
        """Keeps the checkpoint until `unpin`; returns the holders of the checkpoint."""
        return self._keep_pin(self._client.post(f"/checkpoints/{self.uuid}/pin"))

    def unpin(self) -> CheckpointPin:
        """Removes one's own pin, or every user's as an admin; returns what keeps it still."""
        return self._keep_pin(self._client.delete(f"/checkpoints/{self.uuid}/pin"))

    def _keep_pin(self, pin: CheckpointPin) -> CheckpointPin:
        """Keep in this handle what a change of the pin answered; returns the answer."""
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
        """Fetches and verifies every file, then renames the folder to `destination`.

        `on_progress` gets the bytes that came and the bytes in all. With `patterns`, as
        `**/*.pth`, only files whose path one of them matches (the rules are those of Python's
        `glob`), and none that one of `excluded` matches.

        `mode`: with `master` the files come by addresses that the cluster gives; with `direct` from
        the store, with the credentials of this process's environment, or the folder on this
        machine; with `auto` directly where that works, and else by the cluster's addresses.

        Raises:
            DetcloudError: an unsafe path, a wrong size or digest, an existing destination, no
                file that the patterns choose, or a store that is not open to these credentials.
        """
        from detcloud.client.direct_download import download_checkpoint
        from detcloud.client.download import select_files

        folder = Path(destination)
        files = select_files(self.files(), patterns, excluded)
        download_checkpoint(self._client, self.uuid, files, folder, on_progress, mode)
        return folder

    def verify(self, on_progress: Callable[[int, int], None] | None = None) -> list[FileFinding]:
        """Reads every file where it is stored and compares it with its record, keeping nothing.

        `on_progress` gets the bytes that were read and the bytes in all.

        It changes nothing: where a checkpoint is DAMAGED and every file OK, `clear_damage` says so.

        Raises:
            DetcloudError: the checkpoint is deleted, its list of files is damaged, or its store
                does not answer.
        """
        from detcloud.client.verification import verify_files

        tell = on_progress or (lambda done, total: None)
        return verify_files(self._client.http, self.files(), tell, self.files)

    def clear_damage(self) -> None:
        """Takes back that the checkpoint is damaged, once `verify` has found every file OK.

        Raises:
            detcloud.shared.http.ApiError: the experiment is another user's, or the cluster finds a
                file missing or of another size.
        """
        self.data = self._client.delete(f"/checkpoints/{self.uuid}/damage")
