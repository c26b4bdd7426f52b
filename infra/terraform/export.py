"""Export of a Pulumi program as Terraform's JSON.

Users of Terraform deploy the export, and Terraform can validate the program without calling a
cloud. Pulumi's providers are generated from Terraform's, so each resource has a counterpart, and
only names differ. An export neither shows how Pulumi's engine would apply a change, nor converts
Pulumi's state.
"""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pulumi

from infra.terraform.provider import Schema, TerraformProvider, to_camel_case, to_snake_case
from infra.terraform.recorder import Resource, is_provider, run_program

FILE = "main.tf.json"
# An input whose later changes are ignored is a random secret. Terraform makes the secret, 32 random
# bytes in base64, because an export must not contain secrets.
_RANDOM = "<<random>>"
_RANDOM_EXPRESSION = '${base64sha256(join("", [uuid(), uuid()]))}'
# The placeholder for a reference while the program runs, in characters that JSON does not escape.
_REFERENCE = re.compile(r"<<(\w+\.\w+\.\w+(?:\[0\]\.\w+)?)>>")


class NoCounterpart(Exception):
    """The program uses a resource type, attribute or asset without a counterpart in Terraform."""


def export(
    program: Callable[[], None],
    provider: TerraformProvider,
    stack: str,
    config: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    """Run the program and write the stack to FILE in `folder`; return the written document.

    Create the folder, replace an existing FILE, and copy the archives of functions into the folder.
    `stack` is the stack's name, and `config` maps names like `detcloud:region` to texts.

    Raises:
        NoCounterpart: the schema lacks a type or attribute. `python -m infra.terraform.schema` adds
            types to the schema.
        OSError: an archive cannot be read, or a file cannot be written.
        Exception: whatever the program raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    maker = EntryMaker(folder, provider)
    outputs = run_program(program, stack, config, maker)
    required = {provider.name: {"source": provider.source, "version": provider.version}}
    document: dict[str, Any] = _with_references(
        {
            "terraform": {"required_version": ">= 1.5", "required_providers": required},
            "provider": {provider.name: maker.provider_entry},
            "resource": maker.resources,
            "output": {to_snake_case(name): {"value": output} for name, output in outputs.items()},
        }
    )
    partial = folder / f".{FILE}.partial"
    partial.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(folder / FILE)
    return document


class EntryMaker:
    """A ResourceMaker that collects Terraform's entries for the resources of a program.

    `resources` maps a type and a label to an entry. `provider_entry` is the configuration of the
    cloud's provider.
    """

    def __init__(self, folder: Path, provider: TerraformProvider) -> None:
        self._folder = folder
        self._provider = provider
        self.provider_entry: dict[str, Any] = {}
        self.resources: dict[str, dict[str, Any]] = {}

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        """Add the resource's entry to `resources`; return id and outputs as references.

        The entry of a provider is stored in `provider_entry` instead; return its name and {}. Copy
        archives among the inputs into the folder, and return no outputs for them. Raise
        NoCounterpart if the schema lacks the type or an attribute.
        """
        if is_provider(resource):
            self.provider_entry = {
                to_snake_case(key): _decode_json(value) for key, value in resource.inputs.items()
            }
            return resource.name, {}
        kind, label = self._type_name(resource.type), _label(resource.name)
        schema, names = self._provider.schema[kind], self._provider.attributes.get(kind, {})
        inputs = {key: self._copy_asset(value) for key, value in resource.inputs.items()}
        entry = _entry(f"{kind}.{label}", schema, inputs, names)
        if resource.ignored:
            kept = [_attribute_name(kind, schema, to_snake_case(name)) for name in resource.ignored]
            entry |= dict.fromkeys(kept, _RANDOM)
            entry["lifecycle"] = [{"ignore_changes": kept}]
        if resource.after:
            after = [f"{self._type_name(token)}.{_label(name)}" for token, name in resource.after]
            entry["depends_on"] = after
        for attribute, digest in self._provider.digests.items():
            if attribute in entry:
                entry[digest] = _digest(self._folder / entry[attribute])
        self.resources.setdefault(kind, {})[label] = entry
        pulumi_names = {theirs: name for name, theirs in names.items()}
        outputs = {
            pulumi_names.get(name) or to_camel_case(name): f"<<{kind}.{label}.{name}>>"
            for name in schema["text"]
        }
        outputs |= self._block_outputs(f"{kind}.{label}", schema, resource.inputs)
        # The program must continue with the archive, not with a reference to the file's name.
        archives = {
            key for key, value in resource.inputs.items() if isinstance(value, pulumi.FileArchive)
        }
        return outputs["id"], {
            key: output for key, output in outputs.items() if key not in archives
        }

    def _block_outputs(
        self, place: str, schema: Schema, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return each nested block of the inputs, with references to the missing text attributes.

        The keys are Pulumi's names. Blocks in lists, and blocks without text attributes, are left
        out. `place` is TYPE.LABEL.
        """
        found = {}
        for name, block in schema["blocks"].items():
            given = inputs.get(to_camel_case(name))
            told = {to_camel_case(item): f"<<{place}.{name}[0].{item}>>" for item in block["text"]}
            if isinstance(given, dict) and told:
                found[to_camel_case(name)] = {**told, **given}
        return found

    def _type_name(self, token: str) -> str:
        """Return Terraform's type for the Pulumi type. Raise NoCounterpart if none exists."""
        names = self._provider.type_names(token)
        known = next((name for name in names if name in self._provider.schema), None)
        if known is None:
            raise NoCounterpart(f"the schema has no {token}")
        return known

    def _copy_asset(self, value: Any) -> Any:
        """Copy a file archive into the folder, and return the file's name.

        Return any other value unchanged. Raise NoCounterpart for other assets and archives, and
        OSError if the file cannot be copied.
        """
        if isinstance(value, pulumi.FileArchive):
            archive = Path(value.path)
            if archive.resolve().parent != self._folder.resolve():
                shutil.copyfile(archive, self._folder / archive.name)
            return archive.name
        if isinstance(value, pulumi.Asset | pulumi.Archive):
            raise NoCounterpart(f"only a file can be exported as an archive, no {type(value)}")
        return value


def _entry(
    place: str, schema: Schema, inputs: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the inputs with Terraform's names; each nested block becomes a list of blocks.

    `names` maps Pulumi's names to Terraform's, where the rules do not find them. Raise
    NoCounterpart, with `place` in the message, if the schema lacks a name.
    """
    entry: dict[str, Any] = {}
    for key, value in inputs.items():
        name = names.get(key) or _attribute_name(place, schema, to_snake_case(key))
        block = schema["blocks"].get(name)
        if block is None:
            entry[name] = value
        else:
            blocks = value if isinstance(value, list) else [value]
            entry[name] = [_entry(f"{place}.{name}", block, item, {}) for item in blocks]
    return entry


def _attribute_name(place: str, schema: Schema, key: str) -> str:
    """Return Terraform's name of the attribute or block `key`.

    Return `key` if the schema has that name, and otherwise the singular of `key`: Terraform names
    lists in the singular. Raise NoCounterpart, which names `place`, if neither exists.
    """
    known = [*schema["settable"], *schema["blocks"]]
    fitting = [name for name in known if key in (name, plural(name))]
    if not fitting:
        raise NoCounterpart(f"{place}: Terraform has no {key!r} there")
    return key if key in fitting else fitting[0]


def plural(name: str) -> str:
    """Return the English plural of a name; a name with a final s stays unchanged."""
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    if name.endswith(("x", "ch", "sh")):
        return f"{name}es"
    return name if name.endswith("s") else f"{name}s"


def _with_references(value: Any) -> Any:
    """Return a copy of the value with placeholders replaced by Terraform's references.

    Other texts with `${` or `%{` are escaped. _RANDOM becomes _RANDOM_EXPRESSION.
    """
    if isinstance(value, dict):
        return {key: _with_references(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_references(item) for item in value]
    if value == _RANDOM:
        return _RANDOM_EXPRESSION
    if isinstance(value, str):
        escaped = re.sub(r"([$%])\{", r"\1\1{", value)
        return _REFERENCE.sub(r"${\1}", escaped)
    return value


def _digest(archive: Path) -> str:
    """Return the SHA-256 of a file in base64. Raise OSError."""
    return base64.b64encode(hashlib.sha256(archive.read_bytes()).digest()).decode()


def _decode_json(value: Any) -> Any:
    """Return the decoded JSON of a provider's input, or the unchanged text without valid JSON.

    Pulumi passes providers' inputs that are not texts as JSON.
    """
    try:
        return json.loads(value)
    except ValueError:
        return value


def _label(name: str) -> str:
    """Return Terraform's label for Pulumi's name: other characters become underscores."""
    return re.sub(r"\W", "_", name)
