"""Inputs of Pulumi's resources in boto3's format, which is nearly the same."""

from collections.abc import Mapping
from typing import Any

Inputs = dict[str, Any]
Made = tuple[str, Mapping[str, Any]]


def capitalize_names(value: Any) -> Any:
    """Return a value in which the names of all maps begin with a capital, as boto3 requires."""
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: capitalize_names(item) for key, item in value.items()}
    return [capitalize_names(item) for item in value] if isinstance(value, list) else value


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list, for services without maps of tags."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def rename_keys(inputs: Inputs, **names: str) -> Inputs:
    """Return the inputs with boto3's names instead of differing names of Pulumi."""
    return {names.get(key, key): value for key, value in inputs.items()}
