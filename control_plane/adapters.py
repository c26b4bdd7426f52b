"""Pydantic adapters for records, created on first use."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")


def lazy_adapter(record: type[Record]) -> Callable[[], TypeAdapter[Record]]:
    """Return a function that returns the pydantic adapter of a type.

    The adapter is created at the first call. Creating an adapter takes as long as importing a
    module, and a new process needs only few adapters.
    """
    return cache(lambda: TypeAdapter(record))
