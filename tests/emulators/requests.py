"""Inputs of Pulumi's resources as boto3 takes them, which is nearly the same."""

from collections.abc import Mapping
from typing import Any

Inputs = dict[str, Any]
Made = tuple[str, Mapping[str, Any]]


def upper(value: Any) -> Any:
    """As boto3 has it: the names of a map begin with a capital."""
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: upper(it) for key, it in value.items()}
    return [upper(it) for it in value] if isinstance(value, list) else value


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Where tags are no map."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def renamed(inputs: Inputs, **names: str) -> Inputs:
    """The inputs with other names for those that boto3 calls otherwise."""
    return {names.get(key, key): value for key, value in inputs.items()}
