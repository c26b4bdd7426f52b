"""A program of Pulumi as Terraform's JSON: for those who have Terraform, and for all that Terraform
can tell of it before anything is asked of a cloud.

Pulumi's provider is made from Terraform's, so each resource has its counterpart there; only names
differ, and `terraform_schema.json` has those. It does not say how Pulumi's engine would go about a
change, nor is a state of Pulumi turned into one of Terraform.
"""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pulumi

from infra.recording import PROVIDER, Resource, run_program

PROVIDER_VERSION = "~> 5.100"
SCHEMA = Path(__file__).with_name("terraform_schema.json")
FILE = "main.tf.json"
# A reference on its way through the program, in signs that JSON leaves as they are.
_REFERENCE = re.compile(r"<<(aws_\w+\.\w+\.\w+)>>")
_TYPES = {"aws:s3/bucketObjectv2:BucketObjectv2": "aws_s3_object"}
_NAMES = {
    "aws_cloudwatch_metric_alarm": {"name": "alarm_name"},
    "aws_lambda_function": {"name": "function_name", "code": "filename"},
    "aws_lambda_permission": {"function": "function_name"},
    "aws_sns_topic_subscription": {"topic": "topic_arn"},
}

Schema = Mapping[str, Any]


class NoCounterpart(Exception):
    """The program says something for which the schema has no name."""


def export(
    program: Callable[[], None], stack: str, config: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Writes the program's stack into `folder`, with the archives that it uses, and returns it.

    Raises:
        NoCounterpart: the schema lacks something; `python -m infra.terraform_schema` refreshes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recorded = Recorded(folder)
    outputs = run_program(program, stack, config, recorded)
    document = {
        "terraform": {
            "required_version": ">= 1.5",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": PROVIDER_VERSION}},
        },
        "provider": {"aws": recorded.provider},
        "resource": recorded.resources,
        "output": {_snake(name): {"value": value} for name, value in outputs.items()},
    }
    written: dict[str, Any] = _written(document)
    partial = folder / f".{FILE}.partial"
    partial.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(folder / FILE)
    return written


class Recorded:
    """A maker whose resources become entries, and their outputs references to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.provider: dict[str, Any] = {}
        self.resources: dict[str, dict[str, Any]] = {}

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        """See Maker."""
        if resource.type == PROVIDER:
            self.provider = {_snake(key): _decoded(it) for key, it in resource.inputs.items()}
            return resource.name, {}
        kind, label = _type_of(resource.type), _label(resource.name)
        schema, names = _schema()[kind], _NAMES.get(kind, {})
        inputs = {key: self._asset(it) for key, it in resource.inputs.items()}
        entry = _entry(f"{kind}.{label}", schema, inputs, names)
        if resource.after:
            after = [f"{_type_of(token)}.{_label(name)}" for token, name in resource.after]
            entry["depends_on"] = after
        if "filename" in entry:
            entry["source_code_hash"] = _digest(self._folder / entry["filename"])
        self.resources.setdefault(kind, {})[label] = entry
        ours = {theirs: name for name, theirs in names.items()}
        outputs = {
            ours.get(name) or _camel(name): f"<<{kind}.{label}.{name}>>" for name in schema["text"]
        }
        return outputs["id"], {key: it for key, it in outputs.items() if key != "code"}

    def _asset(self, value: Any) -> Any:
        if isinstance(value, pulumi.FileArchive):
            return self._copied(Path(value.path))
        if isinstance(value, pulumi.Asset | pulumi.Archive):
            raise NoCounterpart(f"only a file can be exported as an archive, no {type(value)}")
        return value

    def _copied(self, archive: Path) -> str:
        if archive.resolve().parent != self._folder.resolve():
            shutil.copyfile(archive, self._folder / archive.name)
        return archive.name


def _entry(
    place: str, schema: Schema, inputs: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """The inputs under Terraform's names."""
    entry: dict[str, Any] = {}
    for key, value in inputs.items():
        name = names.get(key) or _name(place, schema, _snake(key))
        block = schema["blocks"].get(name)
        if block is None:
            entry[name] = value
        else:
            given = value if isinstance(value, list) else [value]
            entry[name] = [_entry(f"{place}.{name}", block, it, {}) for it in given]
    return entry


def _name(place: str, schema: Schema, key: str) -> str:
    """Lists have a name in the singular in Terraform."""
    known = [*schema["settable"], *schema["blocks"]]
    found = [name for name in known if key in (name, plural(name))]
    if not found:
        raise NoCounterpart(f"{place}: Terraform has no {key!r} there")
    return key if key in found else found[0]


def plural(name: str) -> str:
    """A word of the schema, for several of it."""
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    if name.endswith(("x", "ch", "sh")):
        return f"{name}es"
    return name if name.endswith("s") else f"{name}s"


def type_names(token: str) -> tuple[str, ...]:
    """What Terraform may call a type of Pulumi's, the likeliest first."""
    if token in _TYPES:
        return (_TYPES[token],)
    _, module, name = token.split(":")
    kind = _snake(re.sub("[vV]2$", "", name))
    return (f"aws_{module.split('/')[0]}_{kind}", f"aws_{kind}")


def _type_of(token: str) -> str:
    found = next((name for name in type_names(token) if name in _schema()), None)
    if found is None:
        raise NoCounterpart(f"the schema has no {token}")
    return found


@cache
def _schema() -> Schema:
    found: Schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


def _written(value: Any) -> Any:
    """With references as Terraform writes them, and nothing else that looks like one."""
    if isinstance(value, dict):
        return {key: _written(it) for key, it in value.items()}
    if isinstance(value, list):
        return [_written(it) for it in value]
    if isinstance(value, str):
        plain = re.sub(r"([$%])\{", r"\1\1{", value)
        return _REFERENCE.sub(r"${\1}", plain)
    return value


def _digest(archive: Path) -> str:
    return base64.b64encode(hashlib.sha256(archive.read_bytes()).digest()).decode()


def _decoded(value: Any) -> Any:
    """Whatever is no text comes to a provider as JSON."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _label(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: f"_{found[0]}", name).lower()


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
