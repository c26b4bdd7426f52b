"""The base of all sections of a configuration: strict fields, refusals, secrets and variants.

Validators receive the `Scope` of eras.py as context. The innermost section converts pydantic's
errors to findings, because only this section knows the valid field names for hints.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from control_plane.field_types import MissingHint, Text, ValueRefused, to_integer
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text
from control_plane.text_forms import form_words
from detcloud.shared.masking import MASK, mask_secrets

REVEAL: Final = "reveal"
"""The serialization context that leaves secrets unmasked, for the state table and for agents."""

HINTS_MAX: Final = 20
"""The number of unknown fields of a map that get a hint, because the search for hints is slow."""

UNKNOWN_FIELD: Final = "is not a known field"
_FINDING: Final = "finding"


class Section(BaseModel):
    """A map with known fields. A field with null is absent."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = {}
    """The hints for unknown fields with known names, such as fields of Determined. Other unknown
    fields get the most similar name as a hint.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        # Most processes read few kinds of sections, so validators are built at the first use.
        defer_build=True,
    )

    @model_validator(mode="wrap")
    @classmethod
    def _check_fields(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, Mapping):
            integers = _integer_fields(cls)
            value = {
                key: to_integers(item) if key in integers else item
                for key, item in value.items()
                if item is not None
            }
        try:
            return handler(value)
        except ValidationError as error:
            lines = [_line(finding) for finding in _to_findings(cls, error)]
            raise ValidationError.from_exception_data(cls.__name__, lines) from None


@cache
def _integer_fields(cls: type[Section]) -> frozenset[str]:
    """Return the names of the fields with integers in the type. Cached by class."""
    fields = cls.model_fields.items()
    return frozenset(name for name, field in fields if _is_of_integers(field.annotation))


def _is_of_integers(hint: Any) -> bool:
    return hint is int or any(_is_of_integers(one) for one in get_args(hint))


def to_integers(value: Any) -> Any:
    """Return a value with whole floats, for example 1e3, as integers.

    A list or map is copied, and its direct entries are converted. Other values are unchanged.
    """
    if isinstance(value, list):
        return [to_integer(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_integer(item) for key, item in value.items()}
    return to_integer(value)


class Secret:
    """A text that is shown as a mask. Only `reveal` and the context REVEAL show the text."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text unmasked."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return MASK

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._parse,
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls._render, info_arg=True
            ),
        )

    @classmethod
    def _parse(cls, value: object) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str) or not value:
            refuse("must be a non-empty string", "quote it", shown=False)
        return cls(value)

    @staticmethod
    def _render(secret: Secret, info: SerializationInfo) -> str:
        return secret._value if info.context == REVEAL else MASK


def _mask_map(value: Any, info: SerializationInfo) -> Any:
    return value if info.context == REVEAL else mask_secrets(value)


FreeMap = dict[str, Any]
CarriedMap = Annotated[FreeMap, PlainSerializer(_mask_map)]
"""A map that the cluster stores and shows, but does not read. Secrets in it are masked."""


def refuse(message: str, hint: str = "", *, shown: bool = True) -> NoReturn:
    """Raise PydanticCustomError for the value under validation. pydantic adds the path.

    Args:
        message: the fault, such as "must be at least 1".
        hint: the advice to the user, or "".
        shown: whether the problem shows the value.
    """
    context = {"message": message, "hint": hint} | ({} if shown else {"value": None})
    raise PydanticCustomError(_FINDING, "{message}", context)


def refuse_at(loc: Loc, message: str, hint: str = "", value: object = None) -> NoReturn:
    """Raise ValidationError for a part of the value under validation.

    Args:
        loc: the path of the part from the value.
        message: the fault.
        hint: the advice to the user, or "".
        value: the part for display. Only texts, numbers and booleans are shown.
    """
    raise refusal([Finding(loc, message, hint, _scalar(value))])


def refusal(findings: Sequence[Finding]) -> ValidationError:
    """Return the error with the findings. The caller raises the error.

    The paths of the findings begin at the value under validation.
    """
    lines = [_line(finding) for finding in findings]
    return ValidationError.from_exception_data("configuration", lines)


S = TypeVar("S", bound=Section)


def validate_variant(
    value: object, tag: str, variants: Mapping[str, type[S]], info: ValidationInfo
) -> S:
    """Return the map `value` as the section that the map's field `tag` selects.

    Args:
        variants: the sections by the value of the field.
        info: the context of the validator.

    Raises:
        PydanticCustomError: `value` is not a map, for example an instance of a section.
        ValidationError: the field is absent or names no variant, or the section is invalid.
    """
    name = variant_name(value, tag, variants)
    return variants[name].model_validate(value, context=info.context)


def variant_name(value: object, tag: str, variants: Collection[str]) -> str:
    """Return the name in the field `tag` of the map `value`.

    Raises:
        PydanticCustomError: `value` is not a map.
        ValidationError: the field is absent, or its value is not in `variants`.
    """
    if not isinstance(value, Mapping):
        refuse("must be a map", shown=False)
    name = value.get(tag)
    if name is None:
        refuse_at((tag,), "is required", "one of " + ", ".join(sorted(variants)))
    if not isinstance(name, str) or name not in variants:
        names = ", ".join(sorted(variants))
        hint = nearest_name_hint(name, variants) if isinstance(name, str) else ""
        refuse_at(
            (tag,),
            f"must be one of {names}, not {value_text(name)}",
            hint if hint.startswith("did") else "",
            name,
        )
    return name


def with_defaults(section: S, **values: object) -> S:
    """Return a copy of a section with other values of fields that nobody set.

    The fields stay out of `model_fields_set`. The values are not validated.
    """
    copied = section.model_copy(update=values)
    copied.model_fields_set.difference_update(values)
    return copied


def findings_of(error: ValidationError) -> list[Finding]:
    """Return the faults of a pydantic error as findings with messages for users."""
    return _to_findings(Section, error)


def _check_absolute(path: str) -> str:
    if not posixpath.isabs(path):
        refuse(f"must be an absolute path, not {value_text(path)}")
    return path


def _check_no_parents(path: str) -> str:
    if ".." in path.split("/"):
        refuse(f"must not contain '..', as {value_text(path)} does")
    return path


AbsolutePath = Annotated[Text, AfterValidator(_check_absolute)]
Prefix = Annotated[str, AfterValidator(_check_no_parents)]
Loose = Field(strict=False)
"""The setting of tuple fields, because YAML and JSON have lists in place of tuples."""


_MESSAGES: Final = {
    "missing": "is required",
    "model_type": "must be a map",
    "dict_type": "must be a map",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
_VALUELESS: Final = frozenset(
    {
        "missing",
        "string_too_short",
        "string_too_long",
        "too_short",
        "too_long",
        "model_type",
        "dict_type",
    }
)
"""The kinds of errors without a value, which would not help or might contain a misplaced secret."""


def _to_findings(cls: type[Section], error: ValidationError) -> list[Finding]:
    findings = []
    hints = HINTS_MAX
    for details in error.errors(include_url=False):
        finding = _to_finding(cls, details)
        if details["type"] == "extra_forbidden":
            hints -= 1
            name = str(finding.loc[-1])
            is_told = hints >= 0 or name in cls.unknown_field_hints
            hint = _name_hint(cls, name) if is_told else ""
            finding = replace(finding, hint=hint)
        findings.append(finding)
    return findings


def _name_hint(cls: type[Section], name: str) -> str:
    return cls.unknown_field_hints.get(name) or nearest_name_hint(name, cls.model_fields)


def _to_finding(cls: type[Section], details: Any) -> Finding:
    kind, loc, context = details["type"], details["loc"], details.get("ctx", {})
    if kind == _FINDING:
        value = context.get("value", _scalar(details["input"]))
        return Finding(loc, context["message"], context["hint"], value)
    if isinstance(context.get("error"), ValueRefused):
        finding: Finding = context["error"].finding(loc, _scalar(details["input"]))
        return replace(finding, value=_scalar(finding.value))
    if kind == "extra_forbidden":
        return Finding(loc, UNKNOWN_FIELD)
    if kind == "missing" and len(loc) == 1 and loc[0] in cls.model_fields:
        metadata = cls.model_fields[loc[0]].metadata
        hints = (one.text for one in metadata if isinstance(one, MissingHint))
        return Finding(loc, "is required", next(hints, ""))
    message = _MESSAGES.get(kind, details["msg"].replace("Input should", "must"))
    message = message.format_map(context) if kind in _MESSAGES else message
    if kind == "string_pattern_mismatch":
        message = f"must be {form_words(context['pattern'])}"
    if kind in _VALUELESS:
        return Finding(loc, message)
    value = details["input"]
    hint = _quote_hint(value) if kind == "string_type" else ""
    return Finding(loc, f"{message}, not {value_text(value)}", hint, _scalar(value))


def _quote_hint(value: object) -> str:
    if isinstance(value, bool):
        return "quote it: unquoted yes, no, on and off mean true and false"
    return "quote it" if isinstance(value, int | float) else ""


def _scalar(value: object) -> object:
    return value if isinstance(value, str | int | float) else None


def _line(finding: Finding) -> InitErrorDetails:
    context = {"message": finding.message, "hint": finding.hint, "value": finding.value}
    error = PydanticCustomError(_FINDING, "{message}", context)
    return InitErrorDetails(type=error, loc=finding.loc, input=None)
