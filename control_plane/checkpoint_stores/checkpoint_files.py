"""The interface to the checkpoint files in a store: remove, read, upload, and sign URLs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from detcloud.shared.upload_parts import PartSizes, SessionMemory

# The field of a store's description with which removals delete all versions of a file for good.
# Only the collector adds the field: descriptions for trials lack it.
PURGE_VERSIONS: Final = "purge_versions"


class NoSuchFile(Exception):
    """The path has no regular file. The message completes a sentence that begins with the path,
    such as "is not there".
    """


@dataclass(frozen=True)
class FileContent:
    """The content of an open file."""

    size: int
    """The size in bytes."""
    blocks: Iterator[bytes]
    """The bytes in order. Reading a block may raise OSError."""


@dataclass(frozen=True)
class FileDigests:
    """The size and the digests of a file that a user wants to store."""

    size: int
    """The size in bytes."""
    sha256: str
    """The SHA-256 in hexadecimal."""
    md5: str
    """The MD5 in hexadecimal."""


@dataclass(frozen=True)
class SignedUpload:
    """A signed PUT request with which anybody may store a single file."""

    url: str
    headers: Mapping[str, str]
    """The headers that the request must carry."""


@dataclass(frozen=True)
class LargeFile:
    """A file that a user uploads in parts."""

    path: str
    """The path in the store, like EXPERIMENT/TRIAL/EPOCH/UUID/NAME."""
    size: int
    """The size in bytes."""
    md5: str = ""
    """The MD5 of the whole file in hexadecimal; "" if unknown."""


class PartsUpload(Protocol):
    """The upload of a large file in parts. Every part may be sent again. Methods raise OSError."""

    is_in_order: bool
    """Whether the store accepts a part only after all earlier parts."""
    whole_bytes_max: int | None
    """The largest size in bytes that the store also accepts in a single request; None for no limit.
    """
    sizes: PartSizes

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the parts that the store has.

        Begin the upload if needed. If the whole file exists, a local folder, HDFS and Google's
        store return all numbers. S3 and Azure's store then list only the parts of a further upload.
        """

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]] | None:
        """Sign a PUT request that stores a part, valid for `seconds` or for the store's session.

        Return the URL and the headers to send. Return None if the part must be sent to the API,
        which calls `store_part`.

        Args:
            md5: the MD5 of the part in hexadecimal.
        """

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Store the part in the file `source` of this machine, replacing an earlier copy.

        Raises PartsConflict if the store accepts parts only through signed requests.

        Args:
            md5: the MD5 of the part in hexadecimal. The caller has compared the file's MD5.
        """

    def join(self) -> bool:
        """Publish the file that consists of the parts; return whether this call published the file.

        Return False if the path has a file of the same size already. Only Google's store returns
        True in this case, because the last part itself creates the file. Raises PartsConflict if a
        part is missing, if the file has another size, or if the store finds another MD5. In the
        last case, Google's store deletes the file, and a local folder keeps the parts.
        """


class CheckpointFiles(Protocol):
    """The checkpoint files of a store, in folders like EXPERIMENT/TRIAL/EPOCH/UUID.

    `parts` are the folder names of such a path. Every method may be repeated and raises OSError.
    A method that removes files raises FileNotFoundError if the store's local folder or its bucket
    is missing. `remove_folder`, `remove_file` and `list_files` raise ValueError unless `parts` are
    two or more plain names. A plain name has only ASCII letters, digits, `_` and `-`.
    """

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        """Remove a folder with its content, and the folder's unfinished uploads if the store lists
        unfinished uploads.

        With `prune`, also remove the folders above that are then empty. After every short step,
        yield the number of files that the step removed. The caller may stop between steps and call
        again later. A missing folder is not an error. Raises StoreBusy if the store asks for fewer
        requests.
        """

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        """Remove a file of a checkpoint durably; return the number of removed files.

        Some stores return 1 for a missing file. HDFS also removes the folders that are then empty.
        Raises StoreBusy like `remove_folder`. A store in a local folder raises ValueError if `name`
        has an empty part, `.` or `..`.

        Args:
            name: the path of the file within the folder, as yielded by `list_files`.
        """

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        """Make earlier removals of entries from a folder durable."""

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        """Remove an empty folder, and the folders above that are then empty.

        Do nothing for a folder with content, and in a bucket. A missing folder is not an error: the
        empty folders above are still removed.
        """

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        """Yield the epoch and the UUID of each checkpoint folder of a trial, recorded or not.

        Both are folder names as stored: the caller checks them. Yield nothing for a missing folder.
        """

    def location_text(self, parts: tuple[str, ...]) -> str:
        """Return the location of a folder as text for users, without secrets."""

    def open_file(self, path: str) -> FileContent:
        """Open the file at a path like EXPERIMENT/TRIAL/EPOCH/UUID/NAME for reading.

        Raises NoSuchFile if the path has no regular file.
        """

    def signed_url(self, path: str, seconds: int) -> str | None:
        """Sign a URL by which anybody may download the file for `seconds`.

        Return None if the store signs no URLs: then the API sends the content. The file need not
        exist.
        """

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Yield the path within the folder and the size in bytes of each file below a folder.

        The order is undefined. Yield nothing for a missing folder.
        """

    def store_file(self, path: str, source: str) -> bool:
        """Store a copy of the local file `source` at `path`, whole or not at all.

        Return True if the file was stored. Return False, and change nothing, if `path` is taken.
        """

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        """Sign a request, valid for `seconds`, that stores content with these digests at `path`.

        Return None if the store signs no uploads: then the API receives the content.
        """

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        """Return the new or continued upload of a large file in parts.

        Return None if the store accepts only whole files.

        Args:
            memory: where a store with upload sessions keeps the session of this file.
        """

    def end_session(self, session: str) -> None:
        """Abort an upload in parts whose session a SessionMemory kept.

        Nobody can continue the upload then. A session that has ended is not an error. Do nothing
        in stores without upload sessions.
        """
