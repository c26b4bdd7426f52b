"""Adapters of pydantic, which read and write our records, made at their first use."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")


def lazy_adapter(record: type[Record]) -> Callable[[], TypeAdapter[Record]]:
    """A function that returns the adapter of a type and makes it at its first call: making one
    takes as long as importing a module, and a process that starts needs few of them.
    """
    return cache(lambda: TypeAdapter(record))
