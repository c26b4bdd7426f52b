"""The types and limits of the texts that describe an experiment: name, description and labels.

Configurations and later changes of an experiment use the same types.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from annotated_types import MaxLen, MinLen
from pydantic import BeforeValidator, Field

from control_plane.config.section import refuse
from control_plane.findings import value_text

NAME_CHARACTERS_MAX: Final = 100_000
DESCRIPTION_CHARACTERS_MAX: Final = 100_000
LABEL_CHARACTERS_MAX: Final = 1_000
LABELS_MAX: Final = 100


def _parse_labels(value: Any) -> Any:
    """Convert a list of strings, or a map of name: true, to a list of labels without duplicates.

    A name with false is left out. Return any other value unchanged, for the validation by type.
    Raise PydanticCustomError for a map with a value that is not a boolean.
    """
    if isinstance(value, Mapping):
        for name, kept in value.items():
            if not isinstance(kept, bool):
                refuse(f"must map each name to true, but {name!r} has {value_text(kept)}")
        value = [name for name, kept in value.items() if kept]
    return list(dict.fromkeys(value)) if _are_strings(value) else value


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


ExperimentName = Annotated[str, MinLen(1), MaxLen(NAME_CHARACTERS_MAX)]
Description = Annotated[str, MaxLen(DESCRIPTION_CHARACTERS_MAX)]
Label = Annotated[str, MinLen(1), MaxLen(LABEL_CHARACTERS_MAX)]
Labels = Annotated[
    Annotated[tuple[Label, ...], Field(strict=False, max_length=LABELS_MAX)],
    BeforeValidator(_parse_labels),
]
