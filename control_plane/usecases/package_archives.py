"""Archives of installed packages: agents list and offer the archives of a running experiment."""

from collections.abc import Iterable

from control_plane.objects.package_archives import (
    ARCHIVE_BYTES_MAX,
    ARCHIVES_MAX,
    EXPERIMENT_BYTES_MAX,
    PackageArchive,
    archives_folder,
    list_archives,
)
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import SignedUrl
from control_plane.services import Services


def list_signed(services: Services, experiment_id: int) -> list[tuple[PackageArchive, SignedUrl]]:
    """List an experiment's stored archives, each with a signed download request.

    A request is valid for VALIDITY_MS_MAX. Return an empty list for an experiment without archives.
    """
    archives = list_archives(services.objects, archives_folder(experiment_id))
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    return [
        (archive, services.objects.signed_url("GET", archive.object_key, expires_ms=expires_ms))
        for archive in archives
    ]


def sign_upload(services: Services, offered: PackageArchive) -> tuple[SignedUrl | None, str]:
    """Return a signed request that uploads the offered archive, and "". Store nothing.

    Return None and "" if an archive of the same layer (kind and key) is stored already. Return None
    and a sentence if the archive would exceed a limit. A request is valid for VALIDITY_MS_MAX.
    """
    folder = archives_folder(offered.experiment_id)
    stored = list(list_archives(services.objects, folder))
    if any((archive.kind, archive.key) == (offered.kind, offered.key) for archive in stored):
        return None, ""
    if reason := find_excess(stored, offered.size):
        return None, reason
    signed = services.objects.signed_url(
        "PUT",
        offered.object_key,
        size=offered.size,
        sha256=offered.sha256,
        expires_ms=services.now_ms() + VALIDITY_MS_MAX,
    )
    return signed, ""


def find_excess(stored: Iterable[PackageArchive], size: int) -> str:
    """Return a sentence if another archive of `size` bytes would exceed a limit, else "".

    The limits are ARCHIVE_BYTES_MAX for the archive, and ARCHIVES_MAX and EXPERIMENT_BYTES_MAX for
    all archives of the experiment. `stored` are the experiment's archives so far.
    """
    sizes = [archive.size for archive in stored]
    if size > ARCHIVE_BYTES_MAX:
        return f"the archive has {size} bytes, the limit is {ARCHIVE_BYTES_MAX}"
    if len(sizes) >= ARCHIVES_MAX:
        return f"the experiment has {len(sizes)} archives of packages, the limit is {ARCHIVES_MAX}"
    total = sum(sizes) + size
    if total > EXPERIMENT_BYTES_MAX:
        limit = EXPERIMENT_BYTES_MAX
        return (
            f"the experiment's archives of packages would have {total} bytes, the limit is {limit}"
        )
    return ""
