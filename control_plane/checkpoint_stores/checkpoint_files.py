"""The interface to the files of checkpoints in one store: to remove, to read and to sign them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from detcloud.shared.upload_parts import PartSizes, SessionMemory


class NoSuchFile(Exception):
    """A path leads to no file; the message goes on after it, like "is not there"."""


@dataclass(frozen=True)
class FileContent:
    """The content of a file, in blocks, and its size in bytes."""

    size: int
    blocks: Iterator[bytes]


@dataclass(frozen=True)
class FileDigests:
    """The size in bytes of a file that is to be stored, and its digests in hexadecimal."""

    size: int
    sha256: str
    md5: str


@dataclass(frozen=True)
class SignedUpload:
    """A PUT by which anybody may store one file, with these headers."""

    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class LargeFile:
    """A file that is uploaded in parts: its path, its size in bytes, and its MD5 in hexadecimal,
    empty where nobody told it.
    """

    path: str
    size: int
    md5: str = ""


class PartsUpload(Protocol):
    """The upload of one large file in repeatable parts. Methods raise OSError.

    With `is_in_order` a part is taken after those before it alone. `whole_bytes_max` is the size up
    to which the store takes the file whole as well, None for any.
    """

    is_in_order: bool
    whole_bytes_max: int | None
    sizes: PartSizes

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the parts that are in the store."""

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]] | None:
        """Sign a PUT of that part for so long: its URL and headers; None where the API takes it."""

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store the part that lies in a file of this machine and has that MD5."""

    def join(self) -> bool:
        """Make the file of its parts, which are all there; False where there is one already."""


class CheckpointFiles(Protocol):
    """The files of checkpoints in one store, in folders like EXPERIMENT/TRIAL/EPOCH/UUID.

    Every method may be repeated and raises OSError. Those that remove raise FileNotFoundError where
    the store itself is missing, and ValueError for parts that are no plain names.
    """

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        """Remove a folder with all it holds and, to `prune`, those above it that are left empty.

        Yields after every short step how many files it removed, and may be abandoned there. What
        is gone already is no error. Raises StoreBusy where the store asks for fewer requests.
        """

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        """Remove one file of a checkpoint, durably; `name` is its path within the folder, as
        `list_files` has it. Returns how many files that were. Raises StoreBusy as `remove_folder`.
        """

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        """Make the removal of entries from a folder durable."""

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        """Remove a folder and the folders above it if they are empty."""

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        """Epoch and UUID of each folder among the trial's checkpoints, recorded or not; none if
        nothing is there.
        """

    def location_text(self, parts: tuple[str, ...]) -> str:
        """A folder's location in words for users."""

    def open_file(self, path: str) -> FileContent:
        """Open the file at a path like EXPERIMENT/TRIAL/EPOCH/UUID/NAME. Raises NoSuchFile."""

    def signed_url(self, path: str, seconds: int) -> str | None:
        """Sign a URL by which anybody may read the file for so long; None where the store signs
        none, and the API hands out the content.
        """

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """The path within a folder and the size of each file in it, in no particular order."""

    def store_file(self, path: str, source: str) -> bool:
        """Store the file at `source` on this machine, whole or not at all; False where there is one
        already.
        """

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        """Sign an upload of that content to a path for so long; None where the store signs none,
        and the API takes the content.
        """

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        """Begin or go on with the upload of a large file in parts, which may use `memory` to know
        its own again; None where a file is uploaded whole, however large.
        """

    def end_session(self, session: str) -> None:
        """End an upload in parts that a SessionMemory kept and nobody goes on with; one that has
        ended is no error.
        """
