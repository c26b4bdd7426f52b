"""Terraform's provider of a cloud, and its names of Pulumi's resources."""

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
    """A cloud's provider, which Pulumi's is made from: so only names differ.

    Attributes:
        name: the cloud's, with which types of resources begin.
        source: where Terraform finds the provider.
        version: which of its versions have the schema.
        schema_file: what `python -m infra.terraform.schema` has written of the provider's schema.
        types: Terraform's types by Pulumi's, where the name does not tell.
        attributes: of a type, Terraform's names of attributes by Pulumi's, where they differ.
        digests: by an attribute that names a file, the one that has the file's digest in base64.
    """

    name: str
    source: str
    version: str
    schema_file: Path
    types: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def schema(self) -> Schema:
        """The attributes and blocks of each type."""
        schema: Schema = json.loads(self.schema_file.read_text(encoding="utf-8"))
        return schema

    def type_names(self, token: str) -> tuple[str, ...]:
        """Return what Terraform may call a type of Pulumi's, the likeliest first."""
        if token in self.types:
            return (self.types[token],)
        _, module, name = token.split(":")
        kind = to_snake_case(re.sub("[vV]2$", "", name))
        return (f"{self.name}_{module.split('/')[0]}_{kind}", f"{self.name}_{kind}")


def to_snake_case(name: str) -> str:
    """Return a name of Pulumi's as Terraform writes it."""
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda match: f"_{match[0]}", name).lower()


def to_camel_case(name: str) -> str:
    """Return a name of Terraform's as Pulumi writes it."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
