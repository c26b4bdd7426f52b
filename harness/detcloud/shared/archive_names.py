"""The check of names in archives and checkpoints, which must be plain paths without clashes.

The check of a name takes time proportional to the name's length: each part is folded once, and the
places of the parent folders are looked up.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from detcloud.shared.archive_limits import (
    FILES_MAX,
    NAME_BYTES_MAX,
    NAME_PARTS_MAX,
    NAMES_BYTES_MAX,
    PART_BYTES_MAX,
    ArchiveInvalid,
    display_mebibytes,
)


def fold_part(part: str) -> str:
    """Return a common form of all spellings that a file system may treat as equal to `part`.

    The form has no invisible characters and no upper case. It may contain a slash or be empty.
    """
    if part.isascii():
        return part.lower()
    visible = "".join(c for c in part if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())


@dataclass(eq=False, slots=True)
class _Place:
    """A place in a tree of folded names."""

    places: dict[str, Self] = field(default_factory=dict)
    """The places in this folder, by folded part of the name."""
    owner: "tuple[_Place, str] | None" = None
    """The parent place and the spelling of the part that claimed this place first, or None."""
    is_directory: bool | None = None
    """Whether the place is a folder. None while unknown."""
    is_entry: bool = False
    """Whether the archive has an entry for the place."""

    def spelling(self) -> str:
        """Return the full name that claimed the place first, as spelled. "" without a claim."""
        parts: list[str] = []
        owner = self.owner
        while owner is not None:
            parts.append(owner[1])
            owner = owner[0].owner
        return "/".join(reversed(parts))


class NameChecker:
    """A check of relative names, each by itself and against all earlier names.

    Two spellings clash if a file system may treat both as the same name, in any part of the path,
    because the second file would overwrite the first. Spellings may differ in case, Unicode
    normalisation and invisible characters.

    Args:
        files_max: the limit on files and folders, implied folders included.
        names_bytes_max: the limit on the UTF-8 bytes of all names together.
        fold: returns a common form of all spellings of a part that may clash.
    """

    def __init__(
        self,
        files_max: int = FILES_MAX,
        *,
        names_bytes_max: int = NAMES_BYTES_MAX,
        fold: Callable[[str], str] = fold_part,
    ) -> None:
        self._files_max = files_max
        self._names_bytes_max = names_bytes_max
        self._fold = fold
        self._root = _Place()
        self._places = 0
        self._name_bytes = 0

    def add(self, name: str, is_directory: bool) -> None:
        """Check a name and remember the name for later checks.

        A folder may be added before or after the names in the folder, or not at all. Raise
        ArchiveInvalid if the name is invalid as in `check_name`, was added before, clashes with an
        earlier name, is used both as a file and as a folder, or exceeds a limit. Parts of a refused
        name may be remembered as well, so the checker must not be used after an error.
        """
        check_name(name)
        self._name_bytes += len(name.encode())
        if self._name_bytes > self._names_bytes_max:
            limit = display_mebibytes(self._names_bytes_max)
            raise ArchiveInvalid(name, f"the names hold more than {limit} up to here")
        *folders, last = name.split("/")
        place = self._root
        for part in folders:
            place = self._claim(place, part, name)
            _settle_kind(place, name, is_directory=True)
        place = self._claim(place, last, name)
        if place.is_entry:
            raise ArchiveInvalid(name, "it appears twice")
        _settle_kind(place, name, is_directory)
        place.is_entry = True

    def _claim(self, folder: _Place, part: str, name: str) -> _Place:
        """Claim the place of a name's part in `folder` for this spelling, and return the place.

        A missing place is created and counted. A place that the same spelling claimed before is
        returned again. Raise ArchiveInvalid if another spelling has claimed the place, or if the
        number of places exceeds the limit. `name` is the whole name, for the message.
        """
        place = folder
        # A single character may fold into several characters, including a slash.
        for folded in self._fold(part).split("/"):
            if folded not in place.places:
                place.places[folded] = self._new_place(name)
            place = place.places[folded]
        if place.owner is None:
            place.owner = (folder, part)
        if place.owner[0] is not folder or place.owner[1] != part:
            raise ArchiveInvalid(name, f"it clashes with {place.spelling()!r} on some file systems")
        return place

    def _new_place(self, name: str) -> _Place:
        self._places += 1
        if self._places > self._files_max:
            text = f"there are more than {self._files_max} files and folders"
            raise ArchiveInvalid(name, text)
        return _Place()


def check_name(name: str) -> None:
    """Check that a name is a plain relative path in canonical form, `part/part`.

    A final slash is an empty part. No file is read.

    Raises:
        ArchiveInvalid: the name is empty, absolute or not valid Unicode, or exceeds NAME_BYTES_MAX,
            PART_BYTES_MAX or NAME_PARTS_MAX, or contains an empty part, a part `.` or `..`, a
            backslash or a control character, or begins with a letter and a colon, as a drive does.
    """
    if not name:
        raise ArchiveInvalid(name, "an entry has no name")
    if name.startswith("/") or (name[1:2] == ":" and name[0].isalpha()):
        raise ArchiveInvalid(name, "the name must be relative")
    if "\\" in name:
        raise ArchiveInvalid(name, "the name must not hold a backslash")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ArchiveInvalid(name, "the name must not hold control characters or broken Unicode")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ArchiveInvalid(name, "the name must not hold '.', '..' or empty parts")
    longest = max(len(part.encode()) for part in parts)
    if longest > PART_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        text = f"the name is longer than {NAME_BYTES_MAX} bytes ({PART_BYTES_MAX} a part)"
        raise ArchiveInvalid(name, text)
    if len(parts) > NAME_PARTS_MAX:
        text = f"the name has {len(parts)} parts, the limit is {NAME_PARTS_MAX}; use fewer folders"
        raise ArchiveInvalid(name, text)


def _settle_kind(place: _Place, name: str, is_directory: bool) -> None:
    if place.is_directory is None:
        place.is_directory = is_directory
    if place.is_directory != is_directory:
        raise ArchiveInvalid(name, "it is used both as a file and as a directory")
