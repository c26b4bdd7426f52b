"""The limits of a checkpoint's manifest: who writes one keeps them, who reads one enforces them."""

CHECKPOINT_FILES_MAX = 10_000
"""The files of one checkpoint, those included that are stored beside the training code's own."""

MANIFEST_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of one manifest: of so many files with names of 700 bytes, and of their metadata."""
