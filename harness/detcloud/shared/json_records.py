"""Records, that is frozen dataclasses, that are read from JSON objects in files."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
_TYPES_BY_NAME: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def read_document(path: Path) -> object:
    """Read and parse a file with a JSON value of any type.

    Raise DetcloudError if the content is not JSON, OSError if the file is missing or unreadable,
    and RecursionError for a value that is nested too deep for the parser.
    """
    try:
        document: object = json.loads(path.read_bytes())
    except ValueError as error:
        raise DetcloudError(f"{path} is not JSON: {error}") from None
    return document


def parse_record(kind: type[Record], document: object, place: str, **nested: type[Any]) -> Record:
    """Build a record of the dataclass `kind` from a JSON object. Ignore unknown fields.

    Missing fields get the class's defaults. Null is a value, which needs `None` in the field's
    annotation. A bool is no int, and an int counts as a float. Items of lists and dicts are not
    checked. `nested` maps the name of a field with a single record to the record's class; null then
    always gives None. `place` names the file in messages.

    Raise DetcloudError, also for a nested record, if the document is no object, a value has the
    wrong type or a field without a default is missing.
    """
    if not isinstance(document, dict):
        raise DetcloudError(f"{place} must be an object, it is {document!r:.80}")
    values: dict[str, Any] = {}
    for field_ in fields(kind):
        name = field_.name
        if name not in document:
            continue
        value = document[name]
        if name in nested and value is not None:
            value = parse_record(nested[name], value, f"{place}: {name}")
        elif not _matches_annotation(value, str(field_.type)):
            raise DetcloudError(f"{place}: {name} is {value!r:.80}, not {field_.type}")
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise DetcloudError(f"{place} is not complete: {error}") from None


def _matches_annotation(value: object, annotation: str) -> bool:
    # isinstance would accept a bool as an int.
    parts = (part.split("[")[0].strip() for part in annotation.split(" | "))
    return any(type(value) in _TYPES_BY_NAME.get(part, ()) for part in parts)
