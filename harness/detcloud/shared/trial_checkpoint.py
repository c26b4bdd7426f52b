"""Names of what a checkpoint of a PyTorchTrial has, for readers without torch."""

from __future__ import annotations

LOAD_FILE = "load_data.json"
CODE_FOLDER = "code"
STATE_FILE = "state_dict.pth"
