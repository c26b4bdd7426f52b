"""How our records are read and written: by adapters of pydantic."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter

Record = TypeVar("Record")


def adapter(record: type[Record]) -> Callable[[], TypeAdapter[Record]]:
    """Answers the adapter of the type, which is made when it is first asked for: it takes as long
    as importing a module, and a process that starts needs few of them.
    """
    return cache(lambda: TypeAdapter(record))
