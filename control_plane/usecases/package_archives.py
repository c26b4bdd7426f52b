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
    """List an experiment's archives, each with the request that downloads it."""
    found = list_archives(services.objects, archives_folder(experiment_id))
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    return [
        (one, services.objects.signed_url("GET", one.object_key, expires_ms=expires_ms))
        for one in found
    ]


def sign_upload(services: Services, offered: PackageArchive) -> tuple[SignedUrl | None, str]:
    """Return the request that uploads an archive, or None and the reason.

    The reason is "" if an archive of the same layer is stored already.
    """
    folder = archives_folder(offered.experiment_id)
    stored = list(list_archives(services.objects, folder))
    if any((one.kind, one.key) == (offered.kind, offered.key) for one in stored):
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
    """Return a sentence if another archive of `size` bytes would exceed a limit, else ""."""
    sizes = [one.size for one in stored]
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
