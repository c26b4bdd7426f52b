"""Stored names of fields that have another name in the code.

The name of a dataclass field is also the field's name in stored JSON. A field that is renamed in
the code keeps its stored name in its metadata, so that stored rows stay readable and unchanged:

    desired_state: DesiredState = field(metadata=keep_stored_name("wish"))
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

# Pydantic passes the metadata of a dataclass field to `pydantic.Field`, which reads this key.
_KEY: Final = "alias"


def keep_stored_name(name: str) -> Mapping[str, str]:
    """Return the metadata of a dataclass field that is stored under `name`.

    Encoders must be called with `by_alias=True`. The name in the code is not read from stored JSON.
    """
    return {_KEY: name}


def stored_field_names(record: Any) -> dict[str, str]:
    """Return the stored name of each field of a dataclass, by the name in the code and in order."""
    return {field.name: field.metadata.get(_KEY, field.name) for field in fields(record)}
