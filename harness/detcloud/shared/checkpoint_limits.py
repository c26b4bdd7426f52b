"""The limits on checkpoints and manifests, which writers observe and readers enforce."""

MANIFEST = "manifest.json"
"""The file that lists a checkpoint's other files. Storing the manifest completes a checkpoint."""

CHECKPOINT_FILES_MAX = 10_000
"""The limit on the files of a checkpoint, including files that detcloud adds."""

MANIFEST_BYTES_MAX = 8 * 1024 * 1024
"""The limit on the bytes of a manifest: CHECKPOINT_FILES_MAX names of 700 bytes and metadata."""

MISSING_CAUSE = "the store has no "
"""The beginning of the cause of a damage if a file is missing in the store. The name follows."""

STAGING_FOLDER = ".staging"
"""The folder of unfinished writes in a store that is a folder. No key contains this name."""
