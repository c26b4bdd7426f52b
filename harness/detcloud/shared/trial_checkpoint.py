"""The names of files in a PyTorchTrial's checkpoint, for readers without torch."""

from __future__ import annotations

LOAD_FILE = "load_data.json"
METADATA_FILE = "metadata.json"
CODE_FOLDER = "code"
STATE_FILE = "state_dict.pth"
