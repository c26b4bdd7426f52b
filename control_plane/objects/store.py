"""The ObjectStore protocol, with object keys, errors, signed URLs, and the keys of model code."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from control_plane.text_forms import text_form

KEY_BYTES_MAX = 1024
PART_BYTES_MAX = 255

MODEL_CODE_NAMESPACE = "model-code"
SHA256_PATTERN = text_form(r"^[0-9a-f]{64}$", "a SHA-256: 64 hexadecimal digits in lower case")

_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,62}")
# Characters that another layer may interpret as a separator, an escape or a parameter.
_FORBIDDEN_CHARACTERS = frozenset("\\%;")

Method = Literal["GET", "PUT"]


class InvalidKey(ValueError):
    """A text is not a valid object key. `reason` describes the broken rule."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"object key {text!r}: {reason}")
        self.reason = reason


class ObjectNotFound(Exception):
    """No object is stored under the key."""

    def __init__(self, key: "ObjectKey") -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectConflict(Exception):
    """The key cannot be written because another file is at its path or at a parent of the path."""

    def __init__(self, key: "ObjectKey") -> None:
        super().__init__(f"object {key} cannot be written: something else is at its path")
        self.key = key


@dataclass(frozen=True, order=True)
class ObjectKey:
    """A valid object key: `namespace/part/part`, safe as a relative path and in a URL.

    The namespace (the first part) consists of lower case letters, digits and dashes. The other
    parts contain printable characters, including spaces, but no backslash, `%` or `;`. A part is
    neither empty nor `.` nor `..`. A key has at most 1,024 bytes of UTF-8, and a part has at most
    255 bytes.

    Raises:
        InvalidKey: a rule is broken. Invalid keys are never repaired.
    """

    text: str

    def __post_init__(self) -> None:
        if reason := _broken_rule(self.text):
            raise InvalidKey(self.text, reason)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the key between the slashes."""
        return tuple(self.text.split("/"))

    @property
    def namespace(self) -> str:
        """The first part of the key."""
        return self.parts[0]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.parts[-1]

    def __truediv__(self, part: str) -> Self:
        """Return the key with one more part. Raises InvalidKey."""
        return type(self)(f"{self.text}/{part}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing."""

    key: ObjectKey
    size: int
    """The size in bytes."""


@dataclass(frozen=True)
class SignedUrl:
    """A signed request. The holder may send the request any number of times until it expires."""

    method: Method
    url: str
    """An absolute URL, or a path on the host of the API."""
    headers: Mapping[str, str]
    """The headers that must be sent unchanged."""
    expires_ms: int
    """The epoch ms at which the signature expires."""


class UrlSigner(Protocol):
    """Signs requests for a store that cannot sign requests itself."""

    def sign(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None,
        sha256: str | None,
        expires_ms: int,
    ) -> SignedUrl:
        """Sign a request. The arguments are those of `ObjectStore.signed_url`."""
        ...


def model_code_key(sha256: str) -> ObjectKey:
    """Return the key of an archive of model code, which contains the digest of the archive."""
    return ObjectKey(MODEL_CODE_NAMESPACE) / sha256


class ObjectStore(Protocol):
    """A store of whole objects, which are written atomically and never changed in part.

    Every method may raise OSError or an error of the SDK if the store cannot be reached. The caller
    retries; all methods may be repeated. A call sees the effects of earlier calls.
    """

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        """Write an object. The object is complete and durable when the call returns.

        Return True if the object was written. With `if_absent`, return False if the object exists
        already. If several writers write with `if_absent` at the same time, exactly one writer gets
        True. Without `if_absent`, the last writer wins.

        Raises:
            ObjectConflict: a parent of `key` is an object, or `key` is a folder. Only stores in
                directories raise this error. Flat stores accept such keys, so callers must not
                choose such keys.
            Exception: any error that iterating over `content` raises. Nothing is written in this
                case.
        """
        ...

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Return the content from byte `start` in blocks, at most `length` bytes.

        Return no blocks if `start` is beyond the end. The call itself opens the object, so that a
        replacement or deletion during the iteration does not mix two contents.

        Raises:
            ObjectNotFound: raised by the call, not by the iteration.
        """
        ...

    def size(self, key: ObjectKey) -> int | None:
        """Return the size of an object in bytes. Return None for a missing object."""
        ...

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        """Yield all objects whose key begins with `folder/`, sorted by the bytes of the keys.

        Objects that are written or deleted meanwhile may or may not appear. Yield nothing for a
        missing folder.
        """
        ...

    def delete(self, key: ObjectKey) -> None:
        """Delete an object. A missing object is no error."""
        ...

    def signed_url(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None = None,
        sha256: str | None = None,
        expires_ms: int,
    ) -> SignedUrl:
        """Return a URL with which a client without credentials may read or write an object.

        The URL expires at `expires_ms`, or earlier if the store limits the time.

        Args:
            size: the size of the content in bytes. Required for a PUT.
            sha256: the hexadecimal SHA-256 of the content. Required for a PUT; other content is
                refused.
        """
        ...


def _broken_rule(text: str) -> str | None:
    """Return the rule that `text` breaks as a key. Return None for a valid key."""
    parts = text.split("/")
    if not _NAMESPACE.fullmatch(parts[0]):
        return "the first part must be a namespace of lower case letters, digits and dashes"
    if any(part in ("", ".", "..") for part in parts):
        return "'.', '..' and empty parts are not accepted"
    if not text.isprintable() or _FORBIDDEN_CHARACTERS & set(text):
        return "backslash, '%', ';' and unprintable characters are not accepted"
    if len(text.encode()) > KEY_BYTES_MAX or any(len(p.encode()) > PART_BYTES_MAX for p in parts):
        return f"it is longer than {KEY_BYTES_MAX} bytes, or a part than {PART_BYTES_MAX}"
    return None
