"""Requests to a container of Azure Blob Storage, with the methods of `detcloud.shared.s3.Bucket`.

Azure's client repeats throttled, broken and unanswered requests with growing pauses. A conditional
write carries a token, by which a repeated write recognizes its own blob after a lost answer. A
large file is sent in blocks, which become a blob at the commit. A block's name contains position
and digest. Blocks of two writers therefore never mix, and a writer that resumes after a crash sends
only missing blocks. The client takes 0.5 s to import, so the first container imports it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import md5
from pathlib import Path
from typing import Any

from detcloud.shared.azure_place import AzurePlace, is_azures_own
from detcloud.shared.bucket_errors import (
    BUSY_STATUSES,
    EXPIRED,
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
)
from detcloud.shared.certificates import complete_environment
from detcloud.shared.connection_failures import no_answer_remedy
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import (
    PART_BYTES,
    PARTS_AT_ONCE,
    Digest,
    call_at_once,
    file_parts,
    hash_file,
    part_bytes_of,
    parts_at_once,
)

BLOCKS_MAX = 50_000
RETRIES_MAX = 5
CONNECT_SECONDS_MAX, READ_SECONDS_MAX = 10, 60

# Azure requires names of metadata to be identifiers.
_TOKEN = "detcloud_put"
# The statuses that refuse an unknown header or parameter.
_REFUSALS = (400, 405, 501)
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList")
_NO_PACKAGE = (
    "{place} cannot be used without {package}; install it with pip install 'detcloud[azure]'"
)
_REMEDIES = {
    # Azure's code for a wrong key and for an expired signature.
    "AuthenticationFailed": f"check the credential; {EXPIRED}",
    "AuthorizationFailure": "the credential does not allow that in this container",
    "AuthorizationPermissionMismatch": "the credential does not allow that in this container",
    "AuthorizationFailed": "the credential does not allow that in this container",
}


class AzureContainer:
    """The blobs of a container. Several threads may share the object.

    Azure's client repeats requests with status 408 or 5xx, and broken and unanswered requests, up
    to RETRIES_MAX times with growing pauses. Then the methods raise bucket errors in place of the
    client's: NoSuchBucket without the container, StoreBusy if the store asks for fewer requests,
    and BucketError for other failures. Only methods that say so raise NoSuchKey. `_send_blocks`,
    `_commit_blocks` and `_commit` raise the errors of Azure's client, which their caller
    translates. Errors of local files are passed on as OSError.

    Each call that writes is a writer of its own: a blob of an earlier call, by this object or any
    other, counts as another writer's. A server other than Azure's may ignore or refuse the
    condition that no blob exists. A blob that another writer creates there during the call may be
    replaced.
    """

    def __init__(
        self, place: AzurePlace, *, part_bytes: int = PART_BYTES, transport: Any = None
    ) -> None:
        """Create a client. Nothing is sent yet.

        Larger files than `part_bytes` are sent in blocks of this size, or larger blocks if the file
        would have too many. `transport` is an HttpTransport of azure-core that sends all requests;
        None means a new transport. Raise BucketError if Azure's packages are missing or the place
        is unusable.
        """
        self.place = place
        self._part_bytes = part_bytes
        self._client = _new_client(place, transport)

    def send(self, key: str, source: Path) -> bool:
        """Upload a file as a new blob, completely or not at all. Return True if written.

        Return False, and change no blob, if another writer's blob exists, even with equal content.
        Files above the size of a part are sent in blocks, several at a time; equal blocks that an
        earlier attempt sent are reused. If False is returned or an error is raised, sent blocks may
        stay in the store, for a week at most. Raise OSError if the file is missing or unreadable,
        and BucketError if a file in blocks becomes shorter.
        """
        size, token = source.stat().st_size, secrets.token_hex(16)
        part_bytes = part_bytes_of(size, BLOCKS_MAX, self._part_bytes)
        blob, metadata = self._blob(key), {_TOKEN: token}
        with self._translate_errors(key):
            if size <= part_bytes:
                return self._commit(
                    key,
                    token,
                    lambda is_new: blob.upload_blob(
                        source.read_bytes(),
                        overwrite=not is_new,
                        metadata=metadata,
                        validate_content=True,
                    ),
                )
            blocks = self._send_blocks(key, source, size, part_bytes)
            return self._commit_blocks(key, blocks, token)

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None:
        """Copy a blob to a file, several parts at a time. Replace an existing file.

        Raise NoSuchKey without the blob; the file then stays as before. Raise BucketError if the
        blob is replaced meanwhile, or if not all bytes are received, and NoSuchKey if the blob is
        deleted meanwhile; the file may then contain a part. Update `digest` with the content.
        """
        with self._translate_errors(key):
            content = self._blob(key).download_blob(max_concurrency=PARTS_AT_ONCE)
            with destination.open("wb") as file:
                content.readinto(file)
        if (received := hash_file(destination, digest)) != content.size:
            raise BucketError(f"{received} of {content.size} bytes of {key!r:.200} were received")

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a blob, and return the size in bytes and an iterator of blocks.

        The first part is requested by this call, and further parts during the iteration, which
        works once. Raise NoSuchKey without the blob. The iterator may raise BucketError, also if
        the blob is replaced meanwhile, and NoSuchKey if the blob is deleted meanwhile.
        """
        with self._translate_errors(key):
            content = self._blob(key).download_blob()
        return int(content.size), self._chunks(key, content)

    def object_size(self, key: str) -> int | None:
        """Return the blob's size in bytes. Return None if no blob exists.

        Each call sends a request. Raise NoSuchBucket without the container. Uncommitted blocks are
        no blob.
        """
        found = self._find(key)
        return None if found is None else int(found.size)

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of each blob with the prefix, in the keys' order.

        The prefix may end within a name; "" means all blobs. Keys include the prefix. Pages are
        requested during the iteration, which raises the errors. Uncommitted blocks are left out.
        """
        with self._translate_errors(prefix):
            for blob in self._client.list_blobs(name_starts_with=prefix):
                yield blob.name, int(blob.size)

    def delete(self, key: str) -> None:
        """Delete a blob and its snapshots. Do nothing if no blob exists.

        Raise NoSuchBucket without the container. Uncommitted blocks of a key without a blob stay.
        """
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors(key):
            try:
                # Azure refuses to delete a blob with snapshots without this option.
                self._blob(key).delete_blob(delete_snapshots="include")
            except ResourceNotFoundError as error:
                if _error_code(error) != "BlobNotFound":
                    raise

    def abort_uploads(self, prefix: str) -> None:
        """Delete the uncommitted blocks of all keys with the prefix that have no blob.

        The upload of a live writer loses its blocks as well. A blob that a writer commits at the
        same time for one of these keys is deleted. Azure would keep the blocks for a week. Do
        nothing if a server other than Azure's refuses the listing of blocks. After an error, the
        blocks of later keys stay.
        """
        for key in self.unfinished_keys(prefix):
            # Committing an empty blob drops the other blocks of the key.
            self.commit_blocks(key, ())
            self.delete(key)

    def unfinished_keys(self, prefix: str) -> list[str]:
        """Return the sorted keys with the prefix that have uncommitted blocks but no blob.

        Each call lists the container. Return an empty list if a server other than Azure's refuses
        the listing of blocks.
        """
        try:
            with self._translate_errors(prefix):
                found = self._client.list_blobs(
                    name_starts_with=prefix, include=["uncommittedblobs"]
                )
                names = {blob.name for blob in found}
        except BucketError as error:
            if is_azures_own(self.place.endpoint) or not _may_be_refusal(error.__cause__):
                raise
            return []
        return sorted(names - {key for key, _ in self.list_objects(prefix)})

    @property
    def can_sign(self) -> bool:
        """Whether the credential is an account's key. Other credentials cannot sign URLs.

        Nothing is sent.
        """
        return bool(getattr(self._client.credential, "account_key", None))

    def signed_get_url(self, key: str, seconds: int) -> str:
        """Return a URL that allows anybody to download the blob for `seconds`.

        Browsers save the content to a file. Raise AttributeError without `can_sign`. Nothing is
        sent to the store, so the blob may be missing.
        """
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        url: str = self._blob(key).url
        with self._translate_errors(key):
            signature = generate_blob_sas(
                self._client.account_name,
                self.place.container,
                key,
                account_key=self._client.credential.account_key,
                permission=BlobSasPermissions(read=True),
                expiry=datetime.now(UTC) + timedelta(seconds=seconds),
                content_disposition="attachment",
                protocol="https" if url.startswith("https:") else "https,http",
            )
        return f"{url}?{signature}"

    def _send_blocks(self, key: str, source: Path, size: int, part_bytes: int) -> list[str]:
        """Send the blocks of a file that are not stored yet. Return the names of all blocks.

        A name consists of the block's number and MD5. The names have the order of the blocks in the
        file. Several blocks are sent at a time. No blob is created. After an error, sent blocks
        stay. Raise BucketError if the file has become shorter than `size`, and OSError if the file
        cannot be read.
        """
        blob, there = self._blob(key), self._known_blocks(key)

        def send(numbered: tuple[int, Callable[[], bytes]]) -> str:
            number, read = numbered
            block = read()
            name = f"{number:05}-{md5(block, usedforsecurity=False).hexdigest()}"
            if name not in there:
                blob.stage_block(name, block, len(block), validate_content=True)
            return name

        parts = enumerate(file_parts(source, size, part_bytes))
        return call_at_once(send, parts, parts_at_once(part_bytes))

    def _known_blocks(self, key: str) -> dict[str, int]:
        """Return the sizes in bytes of a key's uncommitted blocks by name. Empty without blocks.

        Return an empty dictionary also if a server other than Azure's refuses the listing of
        blocks. Raise bucket errors for other failures.
        """
        try:
            return self.uncommitted_blocks(key)
        except BucketError as error:
            if is_azures_own(self.place.endpoint) or not _may_be_refusal(error.__cause__):
                raise
            return {}

    def uncommitted_blocks(self, key: str) -> dict[str, int]:
        """Return the sizes in bytes of a key's uncommitted blocks by name. Empty without blocks.

        Names are returned as they were sent. Blocks that belong to a blob are left out. Raise
        BucketError if a server refuses the listing of blocks.
        """
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors(key):
            try:
                _, uncommitted = self._blob(key).get_block_list("uncommitted")
            except ResourceNotFoundError as error:
                if _error_code(error) != "BlobNotFound":
                    raise
                return {}
            return {block.id: int(block.size) for block in uncommitted}

    def send_block(self, key: str, name: str, source: Path) -> None:
        """Upload a file as an uncommitted block of a key, without reading the file into memory.

        Replace an uncommitted block of the same name. A blob of the key stays unchanged, and the
        file stays. Raise OSError if the file cannot be read. Azure requires a name as long as the
        names of the key's other blocks, and refuses other names with BucketError.
        """
        with self._translate_errors(key), source.open("rb") as content:
            size = source.stat().st_size
            self._blob(key).stage_block(name, content, size, validate_content=True)

    def commit_blocks(self, key: str, names: Sequence[str]) -> bool:
        """Create a blob from uncommitted blocks, in the order of `names`. Return True if created.

        Other uncommitted blocks of the key are then dropped. Without names, create an empty blob.

        Return False, and change nothing, if another writer's blob exists. Each call is a writer of
        its own, so a second call with the same blocks returns False. On a server other than Azure's
        that lacks conditions, the call may replace a blob that was created during the call.

        Raise BucketError if a block is missing and no blob exists. With a blob, return False.
        """
        with self._translate_errors(key):
            return self._commit_blocks(key, names, secrets.token_hex(16))

    def _commit_blocks(self, key: str, names: Sequence[str], token: str) -> bool:
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(name) for name in names]
        blob, metadata = self._blob(key), {_TOKEN: token}
        return self._commit(
            key,
            token,
            lambda is_new: blob.commit_block_list(
                blocks, metadata=metadata, **(_if_absent() if is_new else {})
            ),
        )

    def _commit(self, key: str, token: str, write: Callable[[bool], Any]) -> bool:
        """Write a blob by `write`, and return True. Return False if another writer's blob exists.

        `write(True)` writes on the condition that no blob exists. A compatible server may ignore or
        refuse the condition. The method therefore first looks for a blob, and after a refusal calls
        `write(False)`, which replaces a blob that another writer has created meanwhile. A blob with
        the same `token` is this writer's own and counts as written. Other errors of `write` are
        passed on, also a refusal for a missing block if no blob exists. Azure's client repeats each
        request of `write`.
        """
        from azure.core.exceptions import HttpResponseError

        is_own = is_azures_own(self.place.endpoint)
        if not is_own and self._find(key) is not None:
            return False
        try:
            write(True)
            return True
        except HttpResponseError as error:
            if not is_own and _may_be_refusal(error) and _error_code(error) not in _TAKEN:
                write(False)
                return True
            if _error_code(error) not in _TAKEN:
                raise
            # After a lost answer, the repeated write conflicts with its own blob.
            found = self._find(key)
            if found is None:
                raise
            return bool((found.metadata or {}).get(_TOKEN) == token)

    def _find(self, key: str) -> Any:
        """Request the blob's properties. Return None if no blob exists.

        The result is Azure's description of the blob. Raise NoSuchBucket without the container, and
        BucketError for other failures.
        """
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors(key):
            try:
                return self._blob(key).get_blob_properties()
            except ResourceNotFoundError as error:
                if _error_code(error) == "ContainerNotFound":
                    raise
                return None

    def _chunks(self, key: str, content: Any) -> Iterator[bytes]:
        with self._translate_errors(key):
            yield from content.chunks()

    def _blob(self, key: str) -> Any:
        return self._client.get_blob_client(key)

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        from azure.core.exceptions import (
            AzureError,
            HttpResponseError,
            ServiceRequestError,
            ServiceResponseError,
        )

        try:
            yield
        except ValueError as error:
            if "Content-Range" not in str(error):
                raise
            # Azure's client refuses a whole blob in the place of a requested range.
            text = f"{key!r:.200} in {self.place}: {error} Requests for ranges have to be answered"
            raise BucketError(f"{text} with ranges: check the proxies before the store") from error
        except HttpResponseError as error:
            code = _error_code(error)
            if code == "ContainerNotFound":
                raise NoSuchBucket(f"there is no container {self.place}") from error
            if code == "BlobNotFound":
                raise NoSuchKey(f"there is nothing under {key} in {self.place}") from error
            remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
            # The further lines contain the request's number and time.
            said = f"{error.status_code} {code} {str(error.message).partition(chr(10))[0]}"
            kind = StoreBusy if error.status_code in BUSY_STATUSES else BucketError
            raise kind(f"{key!r:.200} in {self.place}: {said}{remedy}") from error
        except AzureError as error:
            is_answer = not isinstance(error, ServiceRequestError | ServiceResponseError)
            remedy = "" if is_answer else f"; {no_answer_remedy(self.place.endpoint, error)}"
            raise BucketError(f"{key!r:.200} in {self.place}: {error}{remedy}") from error


@lru_cache(maxsize=64)
def azure_container_of(place: AzurePlace) -> AzureContainer:
    """Return the container at a place, from a cache of 64 containers.

    Equal places get the same object, which the process keeps. Nothing is sent. Raise BucketError as
    the constructor of AzureContainer does; errors are not cached.
    """
    return AzureContainer(place)


def _new_client(place: AzurePlace, transport: Any) -> Any:
    try:
        from azure.storage.blob import ContainerClient, ExponentialRetry
    except ImportError:
        text = _NO_PACKAGE.format(place=place, package="azure-storage-blob")
        raise BucketError(text) from None

    class FullJitterRetry(ExponentialRetry):  # type: ignore[misc]
        def get_backoff_time(self, settings: dict[str, Any]) -> float:
            return backoff_seconds(max(1, settings["count"]))

    if problem := place.problem:
        raise BucketError(f"{place} cannot be used: {problem}")
    try:
        complete_environment(os.environ)
    except ValueError as error:
        raise BucketError(f"{place} cannot be used: {error}") from None
    retries: Any = {f"retry_{name}": RETRIES_MAX for name in ("total", "connect", "read", "status")}
    options: dict[str, Any] = {
        "max_single_put_size": PART_BYTES,
        "max_single_get_size": PART_BYTES,
        "max_chunk_get_size": PART_BYTES,
        "connection_timeout": CONNECT_SECONDS_MAX,
        "read_timeout": READ_SECONDS_MAX,
        "retry_policy": FullJitterRetry(**retries),
        "transport": transport,
    }
    try:
        credential: Any = place.key or _environment_identity(place)
        return ContainerClient(place.endpoint, place.container, credential, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise BucketError(f"{place} cannot be used: {error}") from None


def _environment_identity(place: AzurePlace) -> Any:
    """Return the identity of the machine or the environment, which only Azure may receive.

    The result is a DefaultAzureCredential of azure-identity. Tokens are requested at the first use.
    Raise BucketError for an account outside Azure's own clouds, or if azure-identity is missing.
    """
    if not is_azures_own(place.endpoint):
        raise BucketError(f"{place} is not an account of Azure's own: set a credential for it")
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        text = _NO_PACKAGE.format(place=place, package="azure-identity or a credential")
        raise BucketError(text) from None
    return DefaultAzureCredential()


def _if_absent() -> dict[str, Any]:
    """Return the arguments that make a block commit conditional on a missing blob."""
    from azure.core import MatchConditions

    return {"match_condition": MatchConditions.IfMissing}


def _may_be_refusal(error: Any) -> bool:
    """Whether an error's status may mean that the server does not support a feature.

    True for the statuses 400, 405 and 501. False for errors without a status.
    """
    return getattr(error, "status_code", None) in _REFUSALS


def _error_code(error: Any) -> str:
    """Return Azure's code of an HttpResponseError. Without a code, return the status as text.

    An error without an answer gives "None".
    """
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or error.status_code)
