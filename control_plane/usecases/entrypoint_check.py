"""Check of a submission's entrypoint against the files of the model code."""

from control_plane.config.entrypoint_files import find_missing_code, names_code
from control_plane.config.experiment import ExperimentConfig
from control_plane.errors import invalid
from control_plane.objects.store import ObjectNotFound, model_code_key
from control_plane.services import Services
from detcloud.shared.archive_limits import ArchiveInvalid

# A larger archive takes too long to read within a request.
CODE_BYTES_CHECKED_MAX = 1 << 20


def check_entrypoint(
    services: Services, config: ExperimentConfig, model_code: str | None
) -> list[str]:
    """Check that the model code has the file that the entrypoint names; return warnings.

    Args:
        services: the services with the object store.
        config: the configuration with the entrypoint.
        model_code: the SHA-256 of the model code's archive, or None.

    Returns:
        A single warning if trials may not find the file. Empty if the file exists or nothing can be
        checked. Nothing can be checked without model code, for an entrypoint that names no file, or
        for an archive that is missing, damaged or above CODE_BYTES_CHECKED_MAX.

    Raises:
        RequestError: invalid, if no trial can find the file.
    """
    if model_code is None or not names_code(config):
        return []
    size = services.objects.size(model_code_key(model_code))
    if size is None or size > CODE_BYTES_CHECKED_MAX:
        return []
    try:
        listed = services.code_archives.list_files(model_code)
    except (ObjectNotFound, ArchiveInvalid):
        # The trial's log will report the problem of the archive.
        return []
    missing = find_missing_code(config, {file.path for file in listed})
    if missing is None:
        return []
    if missing.is_certain:
        raise invalid("entrypoint", missing.text, "correct the path, or add the file")
    return [f"entrypoint: {missing.text}; trials fail unless they find it elsewhere"]
