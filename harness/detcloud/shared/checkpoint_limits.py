"""The limits of a checkpoint and its manifest, which writers observe and readers enforce."""

MANIFEST = "manifest.json"
"""The file that lists a checkpoint's other files; it is stored last, and is what completes it."""

CHECKPOINT_FILES_MAX = 10_000
"""The files of one checkpoint, those included that are stored beside the training code's own."""

MANIFEST_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of one manifest: of so many files with names of 700 bytes, and of their metadata."""

STAGING_FOLDER = ".staging"
"""The folder of unfinished writes in a store that is a folder: no key contains such a part."""
