"""The names in a snapshot of a notebook's or shell's folder."""

from __future__ import annotations

KIND = "kind"
"""The field of a checkpoint's metadata that marks a snapshot."""
FOLDER = "folder"
"""The value of KIND in the metadata of a snapshot."""
ARCHIVE = "folder.tar"
"""The name of the only file of a snapshot, beside the files that each checkpoint has."""
