"""The limits of archives of model code, and the error of one that breaks a rule.

Packers keep to them and readers enforce them, so that no archive, of any origin, costs its reader
more than they say.
"""

from detcloud.shared.errors import DetcloudError

FILE_BYTES_MAX = 95 * 1024 * 1024
"""The bytes of all files together."""

FILES_MAX = 100_000
"""The files and folders, those included that only the names of others imply."""

NAME_BYTES_MAX = 1024
"""The bytes of one name in UTF-8, from the root of the tree."""

PART_BYTES_MAX = 255
"""The bytes of one part of a name: what file systems take."""

NAME_PARTS_MAX = 64
"""The parts of one name, a file and the folders around it."""

NAMES_BYTES_MAX = 16 * 1024 * 1024
"""The bytes of all names together: 160 for each of as many files as there may be."""

EXTENSIONS_MAX = 4
"""The headers that may extend one entry: a long name, a long link, and what PAX adds to both."""

EXTENSION_BYTES_MAX = 16 * 1024
"""The bytes of one header that extends an entry: a name needs 1 KiB, times and owners as much."""

EXTENSIONS_BYTES_MAX = 24 * 1024 * 1024
"""The bytes of all such headers together: those of all names, and of the fields around them."""

GLOBAL_HEADERS_MAX = 1
"""The PAX headers that extend all entries behind them. Version control writes one at the start."""

GLOBAL_HEADER_BYTES_MAX = 512
"""The bytes of such a header, which the reader goes through with every entry behind it."""

GZIP_MEMBERS_MAX = 16
"""The pieces that may have been compressed one by one; `pack` makes one."""

RATIO_MAX = 200
"""The bytes that one compressed byte may stand for: real trees rarely shrink more than fifty times;
deflate itself ends at 1032.
"""

RATIO_FREE_BYTES = 16 * 1024 * 1024
"""The bytes to which RATIO_MAX does not apply, for small archives of little variety."""


class ArchiveInvalid(DetcloudError):
    """An archive or a tree was refused.

    Attributes:
        name: the entry or file, or "" when the archive as a whole is at fault.
        reason: what is wrong with it and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r}: {reason}" if name else reason)
        self.name = name
        self.reason = reason


def check_ratio(content_bytes: int, archive_bytes: int) -> None:
    """Raise ArchiveInvalid when so many bytes of content are too many for such an archive."""
    if content_bytes > max(RATIO_FREE_BYTES, RATIO_MAX * archive_bytes):
        raise ArchiveInvalid(
            "",
            f"the content expands more than {RATIO_MAX} times, as a bomb does; "
            "exclude files that repeat one byte",
        )


def display_mebibytes(size: int) -> str:
    """The size in MiB, with one digit behind the point."""
    return f"{size / 2**20:.1f} MiB"
