"""Requests to one container of Azure Blob Storage, with the methods of `detcloud.shared.s3.Bucket`.

Azure's client repeats what was throttled, broken off or not answered, with pauses that grow. A
write that must be the first carries a token by which a repeat recognises its own blob when the
answer was lost. A large file goes in blocks that are no blob before they are committed. A block is
named by its position and digest, so that the blocks of two writers never mix, and a writer that
resumes after a crash sends only the missing ones. The client takes half a second to import, so the
first container loads it.
"""

from __future__ import annotations

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
    NO_ANSWER,
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
)
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import (
    PART_BYTES,
    PARTS_AT_ONCE,
    call_at_once,
    file_parts,
    part_bytes_of,
    parts_at_once,
)

BLOCKS_MAX = 50_000
RETRIES_MAX = 5
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60

# Their names are identifiers.
_TOKEN = "detcloud_put"
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList")
_NO_PACKAGE = (
    "{place} cannot be used without {package}; install it with pip install 'detcloud[azure]'"
)
_REMEDIES = {
    # Of a key that is wrong, and of a signature that has expired.
    "AuthenticationFailed": f"check the credential; {EXPIRED}",
    "AuthorizationFailure": "the credential does not allow that in this container",
    "AuthorizationPermissionMismatch": "the credential does not allow that in this container",
    "AuthorizationFailed": "the credential does not allow that in this container",
}


class AzureContainer:
    """Requests on the blobs of one container; may be used by many threads at once.

    Every method raises NoSuchBucket, and BucketError for what repeats did not mend.
    """

    def __init__(self, place: AzurePlace) -> None:
        """BucketError without Azure's packages and for a place that cannot be."""
        self.place = place
        self._client = _new_client(place)

    def send(self, key: str, source: Path) -> bool:
        """Write a file's content as a blob, whole or not at all; False where there is one."""
        size, token = source.stat().st_size, secrets.token_hex(16)
        part_bytes = part_bytes_of(size, BLOCKS_MAX)
        blob, metadata = self._blob(key), {_TOKEN: token}
        with self._translate_errors(key):
            if size <= part_bytes:
                return self._commit(
                    key,
                    token,
                    lambda: blob.upload_blob(
                        source.read_bytes(), metadata=metadata, validate_content=True
                    ),
                )
            blocks = self._send_blocks(key, source, size, part_bytes)
            return self._commit_blocks(key, blocks, token)

    def fetch(self, key: str, destination: Path) -> None:
        """Copy a blob to a file, several parts at a time. Raises NoSuchKey.

        All parts are of one version of the blob: a replacement meanwhile is an error.
        """
        with self._translate_errors(key):
            content = self._blob(key).download_blob(max_concurrency=PARTS_AT_ONCE)
            with destination.open("wb") as file:
                content.readinto(file)

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a blob: its size in bytes, and its bytes in blocks. Raises NoSuchKey."""
        with self._translate_errors(key):
            content = self._blob(key).download_blob()
        return int(content.size), self._chunks(key, content)

    def object_size(self, key: str) -> int | None:
        """The blob's size in bytes; None where there is none."""
        found = self._find(key)
        return None if found is None else int(found.size)

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys with that prefix, in the order of their bytes, and their sizes in bytes."""
        with self._translate_errors(prefix):
            for blob in self._client.list_blobs(name_starts_with=prefix):
                yield blob.name, int(blob.size)

    def delete(self, key: str) -> None:
        """Remove a blob; one that is gone already is no error."""
        from azure.core.exceptions import ResourceNotFoundError

        with self._translate_errors(key):
            try:
                self._blob(key).delete_blob()
            except ResourceNotFoundError as error:
                if _error_code(error) != "BlobNotFound":
                    raise

    def abort_uploads(self, prefix: str) -> None:
        """Drop the blocks under keys with that prefix that are in no blob, which Azure would keep
        for a week.
        """
        for key in self.unfinished_keys(prefix):
            # A blob of no blocks drops those that it leaves out.
            self.commit_blocks(key, ())
            self.delete(key)

    def unfinished_keys(self, prefix: str) -> list[str]:
        """The keys with that prefix that have blocks and no blob."""
        with self._translate_errors(prefix):
            found = self._client.list_blobs(name_starts_with=prefix, include=["uncommittedblobs"])
            names = {blob.name for blob in found}
        return sorted(names - {key for key, _ in self.list_objects(prefix)})

    @property
    def can_sign(self) -> bool:
        """Whether the credential is an account's key; others sign nothing."""
        return bool(getattr(self._client.credential, "account_key", None))

    def signed_get_url(self, key: str, seconds: int) -> str:
        """A URL by which anybody may read the blob, as a download, for that long."""
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
        """Send all blocks but those that are there; their names."""
        blob, there = self._blob(key), self.uncommitted_blocks(key)

        def send(numbered: tuple[int, Callable[[], bytes]]) -> str:
            number, read = numbered
            block = read()
            name = f"{number:05}-{md5(block, usedforsecurity=False).hexdigest()}"
            if name not in there:
                blob.stage_block(name, block, len(block), validate_content=True)
            return name

        parts = enumerate(file_parts(source, size, part_bytes))
        return call_at_once(send, parts, parts_at_once(part_bytes))

    def uncommitted_blocks(self, key: str) -> dict[str, int]:
        """The name and size of each block of a key that is there and in no blob yet."""
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
        """Store a file's content as a block of a key, read piece by piece."""
        with self._translate_errors(key), source.open("rb") as content:
            size = source.stat().st_size
            self._blob(key).stage_block(name, content, size, validate_content=True)

    def commit_blocks(self, key: str, names: Sequence[str]) -> bool:
        """Make a blob of blocks, whole or not at all; False where there is one."""
        with self._translate_errors(key):
            return self._commit_blocks(key, names, secrets.token_hex(16))

    def _commit_blocks(self, key: str, names: Sequence[str], token: str) -> bool:
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(name) for name in names]
        blob, metadata, condition = self._blob(key), {_TOKEN: token}, _if_absent()
        return self._commit(
            key, token, lambda: blob.commit_block_list(blocks, metadata=metadata, **condition)
        )

    def _commit(self, key: str, token: str, write: Callable[[], Any]) -> bool:
        """Write the blob; returns False if another writer's blob exists."""
        from azure.core.exceptions import HttpResponseError

        try:
            write()
            return True
        except HttpResponseError as error:
            if _error_code(error) not in _TAKEN:
                raise
            # A repeat of a write whose answer was lost finds its own blob in its way.
            found = self._find(key)
            if found is None:
                raise
            return bool((found.metadata or {}).get(_TOKEN) == token)

    def _find(self, key: str) -> Any:
        """The blob's properties; None where there is none."""
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
        except HttpResponseError as error:
            code = _error_code(error)
            if code == "ContainerNotFound":
                raise NoSuchBucket(f"there is no container {self.place}") from error
            if code == "BlobNotFound":
                raise NoSuchKey(f"there is nothing under {key} in {self.place}") from error
            remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
            # Behind its first line there are the request's number and time.
            said = f"{error.status_code} {code} {str(error.message).partition(chr(10))[0]}"
            kind = StoreBusy if error.status_code in BUSY_STATUSES else BucketError
            raise kind(f"{key!r:.200} in {self.place}: {said}{remedy}") from error
        except AzureError as error:
            is_answer = not isinstance(error, ServiceRequestError | ServiceResponseError)
            remedy = "" if is_answer else f"; {NO_ANSWER}"
            raise BucketError(f"{key!r:.200} in {self.place}: {error}{remedy}") from error


@lru_cache(maxsize=64)
def azure_container_of(place: AzurePlace) -> AzureContainer:
    """The container at a place, made once. Raises BucketError as an AzureContainer does."""
    return AzureContainer(place)


def _new_client(place: AzurePlace) -> Any:
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
    retries: Any = {f"retry_{name}": RETRIES_MAX for name in ("total", "connect", "read", "status")}
    options: dict[str, Any] = {
        "max_single_put_size": PART_BYTES,
        "max_single_get_size": PART_BYTES,
        "max_chunk_get_size": PART_BYTES,
        "connection_timeout": CONNECT_SECONDS_MAX,
        "read_timeout": READ_SECONDS_MAX,
        "retry_policy": FullJitterRetry(**retries),
    }
    try:
        credential: Any = place.key or _environment_identity(place)
        return ContainerClient(place.endpoint, place.container, credential, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise BucketError(f"{place} cannot be used: {error}") from None


def _environment_identity(place: AzurePlace) -> Any:
    """The identity of the machine or the environment, which is shown to Azure alone."""
    if not is_azures_own(place.endpoint):
        raise BucketError(f"{place} is not an account of Azure's own: set a credential for it")
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        text = _NO_PACKAGE.format(place=place, package="azure-identity or a credential")
        raise BucketError(text) from None
    return DefaultAzureCredential()


def _if_absent() -> dict[str, Any]:
    """The condition of a block commit that no blob exists."""
    from azure.core import MatchConditions

    return {"match_condition": MatchConditions.IfMissing}


def _error_code(error: Any) -> str:
    """Azure's code of an error that it answered, or else the status."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or error.status_code)
