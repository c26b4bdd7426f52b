"""The messages to a trial about the deletion of parts of checkpoints."""

from dataclasses import dataclass, field

from control_plane.rows.stored_fields import keep_stored_name


@dataclass(frozen=True, slots=True)
class PartialDeletionRequested:
    """Command: delete the files of a checkpoint that match patterns.

    The reply is whether the checkpoint was marked as PARTIALLY_DELETED.
    """

    uuid: str
    patterns: tuple[str, ...]
    """The new patterns of files to delete."""
    earlier_patterns: tuple[str, ...] = field(metadata=keep_stored_name("earlier"))
    """The patterns of earlier deletions, as the sender knows them. The command has no effect if the
    checkpoint's record has others.
    """
    files: int
    """The number of files that remain."""
    size_bytes: int
    """The size of the files that remain."""
    fallback_uuid: str = field(default="", metadata=keep_stored_name("instead"))
    """The UUID of the latest other checkpoint. "": no other checkpoint exists."""


@dataclass(frozen=True, slots=True)
class PartialDeletionEnded:
    """The collector removed the files of a checkpoint that match patterns."""

    uuid: str
    patterns: tuple[str, ...]
