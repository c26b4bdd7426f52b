"""Where model code lies in the object store."""

from control_plane.objects.store import Key

MODEL_CODE = "model-code"

SHA256 = r"^[0-9a-f]{64}$"


def model_code_key(sha256: str) -> Key:
    """Where an archive lies: its digest is its name."""
    return Key(MODEL_CODE) / sha256
