"""The field `entrypoint` of a configuration: a class, or the words of a command."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import PlainSerializer, PlainValidator, ValidationInfo

from control_plane.config.eras import scope_of
from control_plane.config.section import refuse
from control_plane.findings import value_text
from detcloud.shared.launcher_names import LAUNCHERS, unknown_launcher

_CLASS_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


def _parse_entrypoint(value: object, info: ValidationInfo) -> str | tuple[str, ...]:
    """Return a checked entrypoint. Raises PydanticCustomError for another form."""
    commands = scope_of(info).rules.entrypoint_commands
    if isinstance(value, str) and value.strip():
        if not commands and not _CLASS_PATH.match(value):
            hint = "a command line needs the length era: max_length instead of max_steps"
            refuse(f"must be module:Class, not {value_text(value)}", hint)
        _check_launcher(value)
        return value
    words = value if isinstance(value, list | tuple) and commands else ()
    if not words or not words[0] or not all(isinstance(word, str) for word in words):
        kinds = "a string or a list of strings" if commands else "module:Class"
        refuse(f"must be {kinds}, and not empty, not {value_text(value)}")
    _check_launcher(tuple(words))
    return tuple(words)


def _check_launcher(entrypoint: str | tuple[str, ...]) -> None:
    """Raise PydanticCustomError for an unknown launcher of detcloud."""
    name = unknown_launcher(entrypoint)
    if name is not None:
        hint = f"there are: {', '.join(LAUNCHERS)}"
        refuse(f"names the launcher detcloud.launch.{name}, which does not exist", hint)


Entrypoint = Annotated[
    str | tuple[str, ...],
    PlainValidator(_parse_entrypoint),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
]
