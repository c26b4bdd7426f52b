"""The base class of handles, the fields of handles, and the parts of requests of handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, overload
from urllib.parse import quote

from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

T = TypeVar("T")


def path_segment(key: object) -> str:
    """Percent-encode the id, UUID or name of a resource as a segment of a URL path.

    Raises:
        DetcloudError: `key` is None, empty, "." or "..", or contains a slash.
    """
    text = "" if key is None else str(key)
    if not text or "/" in text or text in (".", ".."):
        raise DetcloudError(
            f"{key!r} cannot identify anything on a cluster; expected an id, a UUID or a name"
        )
    return quote(text, safe="")


def metadata_filters(metadata: Mapping[str, object] | Sequence[str] | None) -> list[str] | None:
    """Return filters `key=value` for a query from a mapping by path, or from texts of this form.

    Values of a mapping that are not texts become JSON. Return None for None or an empty argument.
    """
    if not metadata:
        return None
    if isinstance(metadata, Mapping):
        import json

        return [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in metadata.items()
        ]
    return [metadata] if isinstance(metadata, str) else list(metadata)


class Field(Generic[T]):
    """A read-only attribute that reads the value of the same name in the handle's `data`.

    Reading raises DetcloudError if the cluster did not send the value. Assigning raises
    AttributeError. `help` shows the field's docstring.
    """

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...

    @overload
    def __get__(self, resource: Resource, owner: type) -> T: ...

    def __get__(self, resource: Resource | None, owner: type) -> Self | T:
        if resource is None:
            return self
        try:
            value: T = resource.data[self._name]
        except KeyError:
            raise DetcloudError(
                f"the cluster did not tell {self._name!r} of this {type(resource).__name__.lower()}"
                "; its version may be older than this client's"
            ) from None
        return value

    def __set__(self, resource: Resource, value: object) -> NoReturn:
        raise AttributeError(f"{self._name} is a value from the cluster; change it with a method")


class Resource:
    """A handle. `data` has the fields that docs/api.md lists, from the cluster's latest answer."""

    def __init__(self, client: Requester, data: dict[str, Any]) -> None:
        self._client = client
        self.data = data

    def __repr__(self) -> str:
        key = next(name for name in ("id", "uuid", "name") if name in self.data)
        return f"{type(self).__name__}({self.data[key]!r})"
