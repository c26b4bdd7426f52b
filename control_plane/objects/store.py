"""The ObjectStore seam: the protocol of object stores, their keys and their errors; and the keys of
model code.
"""

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
# Characters that another layer may take for a separator, an escape or a parameter.
_FORBIDDEN_CHARACTERS = frozenset("\\%;")

Method = Literal["GET", "PUT"]


class InvalidKey(ValueError):
    """A text is no valid key; `reason` says which rule it breaks."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"object key {text!r}: {reason}")
        self.reason = reason


class ObjectNotFound(Exception):
    """There is no object under the key."""

    def __init__(self, key: "ObjectKey") -> None:
        super().__init__(f"there is no object {key}")
        self.key = key


class ObjectConflict(Exception):
    """The key cannot be written: it runs through an object, or something else is in its place."""

    def __init__(self, key: "ObjectKey") -> None:
        super().__init__(f"object {key} cannot be written: something else is at its path")
        self.key = key


@dataclass(frozen=True, order=True)
class ObjectKey:
    """A checked object key: `namespace/part/part`, safe as a relative path and in a URL.

    The namespace (the first part) is lower case letters, digits and dashes. The other parts hold
    printable characters, spaces included, but no backslash, `%` or `;`, and are neither empty nor
    `.` nor `..`. At most 1,024 bytes of UTF-8, 255 a part.

    Raises:
        InvalidKey: a rule is broken. No key is ever cleaned up into another one.
    """

    text: str

    def __post_init__(self) -> None:
        if reason := _broken_rule(self.text):
            raise InvalidKey(self.text, reason)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.text.split("/"))

    @property
    def namespace(self) -> str:
        return self.parts[0]

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __truediv__(self, part: str) -> Self:
        return type(self)(f"{self.text}/{part}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class StoredObject:
    """An object of a listing; `size` is in bytes."""

    key: ObjectKey
    size: int


@dataclass(frozen=True)
class SignedUrl:
    """A request that its holder may make any number of times until `expires_ms` (epoch).

    `url` is absolute, or a path on the API's own host. `headers` must be sent as they are.
    """

    method: Method
    url: str
    headers: Mapping[str, str]
    expires_ms: int


class UrlSigner(Protocol):
    """Signs requests for a store that has no signatures of its own."""

    def sign(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None,
        sha256: str | None,
        expires_ms: int,
    ) -> SignedUrl: ...


def model_code_key(sha256: str) -> ObjectKey:
    """The key of an archive of model code, named by its digest."""
    return ObjectKey(MODEL_CODE_NAMESPACE) / sha256


class ObjectStore(Protocol):
    """Whole objects, written atomically and never changed in part.

    Every method may raise OSError or the SDK's own error when the store cannot be reached; the
    caller retries, and all methods may be repeated. A call sees what earlier calls have written.
    """

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        """Write an object, which is complete and durable when this returns; True if it was written.

        With `if_absent` an object that exists stays as it is and the result is False; of several
        writers at once exactly one gets True. Without it the last writer wins.

        Raises:
            ObjectConflict: `key` runs through an object or names a folder (directories only; a
                flat store accepts such keys, so none may be chosen).
            Anything `content` raises while it is read; nothing is written then.
        """
        ...

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Read the content from byte `start`, at most `length` bytes, in blocks.

        A range that begins after the end is empty. The object is opened by the call itself, so that
        a replacement or deletion during the iteration does not mix two contents.

        Raises:
            ObjectMissing: at the call, not at the first block.
        """
        ...

    def size(self, key: ObjectKey) -> int | None:
        """Read an object's size in bytes, None if there is no object."""
        ...

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        """List all objects whose key begins with `folder/`, in the order of their keys' bytes.

        Objects written or deleted meanwhile may or may not appear. An unknown folder is empty.
        """
        ...

    def delete(self, key: ObjectKey) -> None:
        """Delete an object; no error if there is none."""
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
        """Make a URL with which a client without credentials may read or write `key` until
        `expires_ms`.

        A PUT needs `size` and `sha256` (hexadecimal) and is accepted for that content only.
        """
        ...


def _broken_rule(text: str) -> str | None:
    """The rule of keys that `text` breaks, None for a valid key."""
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
