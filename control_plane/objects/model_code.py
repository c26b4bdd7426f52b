"""The keys of model code in the object store."""

from control_plane.objects.store import ObjectKey

MODEL_CODE_NAMESPACE = "model-code"

SHA256_PATTERN = r"^[0-9a-f]{64}$"


def model_code_key(sha256: str) -> ObjectKey:
    """The key of an archive of model code, named by its digest."""
    return ObjectKey(MODEL_CODE_NAMESPACE) / sha256
