"""Terraform's provider of a cloud, and the translation of Pulumi's names to Terraform's."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class TerraformProvider:
    """Terraform's provider of a cloud.

    Pulumi's provider is generated from Terraform's, so only names differ.
    """

    name: str
    """The start of Terraform's types, like `aws`."""
    source: str
    """The provider's address in Terraform's registry."""
    version: str
    """The constraint on the provider's versions."""
    schema_file: Path
    """The schema that `python -m infra.terraform.schema` wrote."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Terraform's type for each Pulumi type with an irregular name."""
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each Terraform type, irregular names of attributes: Pulumi's name to Terraform's."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """For each attribute with a file's name, the attribute for the file's SHA-256 in base64."""

    @cached_property
    def schema(self) -> Schema:
        """The schema of each of Terraform's types, read from the file once.

        A schema has the keys `settable` and `text` (names of attributes) and `blocks` (schemas).
        """
        schema: Schema = json.loads(self.schema_file.read_text(encoding="utf-8"))
        return schema

    def type_names(self, token: str) -> tuple[str, ...]:
        """Return candidates for Terraform's name of the Pulumi type `token`, the likeliest first.

        `token` is like `aws:sqs/queue:Queue`. The provider's schema decides which candidate exists.
        """
        if token in self.types:
            return (self.types[token],)
        _, module, name = token.split(":")
        kind = to_snake_case(re.sub("[vV]2$", "", name))
        return (f"{self.name}_{module.split('/')[0]}_{kind}", f"{self.name}_{kind}")


def to_snake_case(name: str) -> str:
    """Return Pulumi's camel-case name in Terraform's snake case."""
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda match: f"_{match[0]}", name).lower()


def to_camel_case(name: str) -> str:
    """Return Terraform's snake-case name in Pulumi's camel case."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
