"""The limits of archives of model code, and the error for an invalid archive.

Packers observe the limits and readers enforce the limits, so that reading any archive has a bounded
cost.
"""

from detcloud.shared.errors import DetcloudError

FILE_BYTES_MAX = 95 * 1024 * 1024
"""The limit on the bytes of all files together."""

FILES_MAX = 100_000
"""The limit on files and folders, including folders that only names imply."""

NAME_BYTES_MAX = 1024
"""The limit on the UTF-8 bytes of a name, relative to the root."""

PART_BYTES_MAX = 255
"""The limit on the bytes of a name's part, as in file systems."""

NAME_PARTS_MAX = 64
"""The limit on the parts of a name: the file and its folders."""

NAMES_BYTES_MAX = 16 * 1024 * 1024
"""The limit on the bytes of all names together: 160 bytes for each of FILES_MAX files."""

EXTENSIONS_MAX = 4
"""The limit on headers that extend an entry: a long name, a long link, and a PAX header of each."""

EXTENSION_BYTES_MAX = 16 * 1024
"""The limit on the bytes of a header that extends an entry. A name needs 1 KiB."""

EXTENSIONS_BYTES_MAX = 24 * 1024 * 1024
"""The limit on the bytes of all extending headers: all names and further fields."""

GLOBAL_HEADERS_MAX = 1
"""The limit on PAX headers that extend all later entries. Version control writes a single one."""

GLOBAL_HEADER_BYTES_MAX = 512
"""The limit on the bytes of a global header, which the reader parses again for every entry."""

GZIP_MEMBERS_MAX = 16
"""The limit on separately compressed pieces. `pack` writes a single piece."""

RATIO_MAX = 200
"""The limit on the content bytes per compressed byte. Real trees rarely exceed 50, and deflate can
reach 1032.
"""

RATIO_FREE_BYTES = 16 * 1024 * 1024
"""The content bytes up to which RATIO_MAX does not apply, for small repetitive archives."""


class ArchiveInvalid(DetcloudError):
    """An archive or a tree was refused.

    Attributes:
        name: the name of the entry or file. "" if the archive as a whole is at fault.
        reason: the problem, and advice for users.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r}: {reason}" if name else reason)
        self.name = name
        self.reason = reason


def check_ratio(content_bytes: int, archive_bytes: int) -> None:
    """Raise ArchiveInvalid if the content is too large in relation to the compressed archive.

    The content may have RATIO_MAX times the archive's bytes, and always RATIO_FREE_BYTES. The
    error's `name` is "".
    """
    if content_bytes > max(RATIO_FREE_BYTES, RATIO_MAX * archive_bytes):
        raise ArchiveInvalid(
            "",
            f"the content expands more than {RATIO_MAX} times, as a bomb does; "
            "exclude files that repeat one byte",
        )


def display_mebibytes(size: int) -> str:
    """Return a size in bytes as text in MiB, with a digit after the point: `1.5 MiB`."""
    return f"{size / 2**20:.1f} MiB"
