"""The references of configurations, docs/configuration.md and docs/cluster-configuration.md.

The text of a field is the string below the field in the source of the model (field_sources.py). The
first paragraph of a text is a cell of the table, and further paragraphs follow the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from control_plane.config import (
    environment,
    pools,
    providers,
    resources,
    schedule,
    storage,
    training,
)
from control_plane.config.cluster_sections import CLUSTER_INTRODUCTION, CLUSTER_SECTIONS
from control_plane.config.durations import duration_text
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig, LengthConfig, StepConfig
from control_plane.config.field_sources import FieldSource, find_field_source
from control_plane.config.hang_detection import HangDetection
from control_plane.config.hyperparameters import PARAMETER_TYPES
from control_plane.config.low_use import LowUse
from control_plane.config.provider_types import PROVIDERS
from control_plane.config.quiet_hours import clock_text
from control_plane.config.searcher import SearcherSection, searcher_model, searcher_names
from control_plane.config.section import Section
from control_plane.config.spelled_types import SPELLED_OUT
from control_plane.field_types import Length
from control_plane.paragraphs import first_paragraph, further_paragraphs
from control_plane.searchers.registry import searcher_specs

INTRODUCTION: Final = """\
# Configuration reference

This page lists every field of an experiment's configuration. `detcloud config check FILE` checks a
configuration and prints each problem with its line. `detcloud experiment config ID` prints the
configuration of an experiment with all defaults.

**Eras.** A configuration belongs to one of two eras. The step era counts training in steps of
`batches_per_step` batches. The length era counts in batches, records or epochs. A configuration is
in the step era if it has `max_steps`, `target_trial_steps`, `step_budget`, `steps_per_round` or
`batches_per_step`, or an integer as `min_validation_period` or `min_checkpoint_period`. `detcloud
config check --migrate` converts steps to lengths.

**Missing and wrong fields.** Null is the same as leaving a field out. Unknown fields, duplicate
keys and wrong types are errors.

**Templates and options.** A configuration takes precedence over its template. `--config a.b=value`
takes precedence over both.

**Paths of names.** Dots separate the names of a path. A name that contains a dot, a space, a quote,
`=` or a bracket needs quotes: `--config 'hyperparameters."model.layers"=3'`. Double quotes enclose
a JSON string, and single quotes enclose the name unchanged. Messages, lists, the history and the
web page print paths in the same form. Metadata filters and `set metadata` accept this form.

Without quotes, `hyperparameters.model.layers=3` changes the key `model.layers` if the file or its
template has this key. If the file also has a group `model`, the command is refused and prints both
spellings.

```yaml
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters:
  global_batch_size: 64
  learning_rate: {type: log, base: 10, minval: -3, maxval: -1}
  dropout: {type: double, minval: 0.0, maxval: 0.5}
searcher:
  name: random
  metric: validation_accuracy
  smaller_is_better: false
  max_trials: 8
  max_length: {epochs: 3}
records_per_epoch: 1437
checkpoint_storage:
  save_trial_best: 1
  save_trial_latest: 1
max_restarts: 2
```

`python -m control_plane.config --reference` prints this page, which is made from the code.
"""

SECTIONS: Final[Sequence[tuple[str, str, type[Section]]]] = (
    ("Resources", "`resources`: the resources of the trials.", resources.Resources),
    ("Devices", "An entry of `resources.devices`.", resources.Device),
    ("Bind mounts", "An entry of `bind_mounts`.", resources.BindMount),
    (
        "Environment",
        "`environment`: the content of a trial's container. If trials run as processes, the "
        "variables apply. Settings that need a container have no effect, with a notice at create "
        "and in the trial's log.",
        environment.Environment,
    ),
    ("Proxy ports", "An entry of `environment.proxy_ports`.", environment.ProxyPort),
    ("Reproducibility", "`reproducibility`.", training.Reproducibility),
    ("Optimizations", "`optimizations`.", training.Optimizations),
    ("Profiling", "`profiling`.", training.Profiling),
    (
        "Hang detection",
        "`hang_detection`: trials whose processes live, but neither report nor print anything.",
        HangDetection,
    ),
    (
        "Low use",
        "`low_use`: trials whose slots compute too little. `task_container_defaults` has the "
        "defaults of the cluster and of pools.",
        LowUse,
    ),
    ("Debugger", "`debugger`: a debugger for the trial's code.", training.Debugger),
    (
        "Schedule",
        "`schedule`: the times at which the configuration is submitted again.",
        schedule.Schedule,
    ),
)
TYPES: Final[Mapping[str, str]] = {
    "PackagesField": "list of strings, or string",
    "Text": "string",
    "str": "string",
    "bool": "boolean",
    "float": "number",
    "Real": "number",
    "Whole": "integer",
    "Count": "integer >= 1",
    "CountOrZero": "integer >= 0",
    "SlotsPerTrial": "integer >= 0, or number below 1",
    "Deadline": "duration or time with zone",
    "SlotType": "string",
    "Cost": "number > 0",
    "ExperimentName": "string",
    "Description": "string",
    **dict.fromkeys(("Labels", "Words", "Zones", "Hosts", "MailDomains"), "list of strings"),
    "Entrypoint": "string or list of strings",
    "AnySearcher": "map",
    "Hyperparameters": "map",
    "Environment": "map",
    "Resources": "map",
    "Storage": "map",
    "Layer": "map",
    "FreeMap": "map",
    "ProxyPorts": "list of maps",
    "VolumeGib": "integer >= 100",
    "TagValue": "string",
    "CarriedMap": "map",
    "DescribedTypes": "map",
    "CheckedLogPolicies": "list of maps",
    "LogPolicies": "list of maps",
    "Optimizations": "map",
    "Profiling": "map",
    "HangDetection": "map",
    "LowUse": "map",
    "Debugger": "map",
    "Schedule": "map",
    "Reproducibility": "map",
    "RegistryAuth": "map",
    "BindMounts": "list of maps",
    "Scheduler": "map",
    "ResourceManager": "map",
    "TaskContainerDefaults": "map",
    "GangCheck": "map",
    "LogExclusion": "map",
    "AnyProvider": "map",
    "NetworkInterface": "map",
    "Offerings": "list of maps",
    "TagKey": "string",
    "LabelKey": "string",
    "LabelValue": "string",
    "MachineConfig": "map",
    "MachineProxy": "map",
    "Certificates": "string",
    "NetworkConfig": "map",
    "AccountConfig": "map",
    "Tags": "list of maps",
    "Folder": "absolute path",
    "Folders": "list of absolute paths",
    "FileSystemId": "string",
    "FileSystems": "list of maps",
    "MountName": "string",
    "NfsServer": "string",
    "NfsShares": "list of maps",
    "NfsVersion": "`3` or `4.1`",
    "VolumeIops": "integer 3000 to 80000",
    "VolumeThroughput": "integer 125 to 2000",
    "PoolName": "string",
    "PoolNames": "string, or list of strings",
    "Duration": "duration",
    "PositiveDuration": "duration",
    "DeletionTimes": "string",
    "ImagesField": "string, or map",
    "VariablesField": "list of strings, or map",
    "VariableNames": "list of strings",
    "Steps": "steps, an integer >= 1",
    "Period": "length",
    "Measured": "length",
    "MaxLength": "length",
    "AbsolutePath": "absolute path",
    "Prefix": "string without `..`",
    "Url": "URL",
    "Secret": "secret",
    "Propagation": "`rprivate`, `private`, `rshared`, `shared`, `rslave` or `slave`",
    "dict[str, Port]": "map of ports",
    "Any": "any",
}
CHOSEN_BY_CHECK: Final = frozenset({"experiment_seed", "searcher"})
"""Fields with a placeholder as the default in the model, which a check replaces."""


def render_cluster_reference() -> str:
    """Return the reference of cluster configurations in Markdown."""
    return "\n".join(_cluster_lines()).rstrip("\n") + "\n"


def _cluster_lines() -> Iterator[str]:
    yield CLUSTER_INTRODUCTION
    yield from _section("Fields", "At the top:", field_rows(pools.ClusterConfig))
    for title, text, section in CLUSTER_SECTIONS:
        yield from _section(title, text, field_rows(section))
    for model in PROVIDERS.values():
        for title, text, section in model.reference_sections:
            yield from _section(title, text, field_rows(section))
    for name, model in PROVIDERS.items():
        yield from (f"### {name}", "", _sentence(model), "")
        yield from _table(field_rows(model, providers.Provider))


def render_reference() -> str:
    """Return the reference of experiment configurations in Markdown."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield from _section("Fields", "In both eras:", field_rows(ExperimentConfig))
    for model, text in ((StepConfig, "In the step era:"), (LengthConfig, "In the length era:")):
        yield text
        yield ""
        yield from _table(field_rows(model, ExperimentConfig))
    yield from _searcher_lines()
    yield from _hyperparameter_lines()
    for title, text, section in SECTIONS:
        yield from _section(title, text, field_rows(section))
    yield from _storage_lines()


def _searcher_lines() -> Iterator[str]:
    names = [spec.name for spec in searcher_specs()]
    listed = ", ".join(f"`{name}`" for name in names)
    text = f"`searcher`, which is required; its `name` is one of {listed}. In every search:"
    yield from _section("Searchers", text, field_rows(SearcherSection))
    for name in names:
        eras = [era for era in Era if name in searcher_names(era)]
        variants = [(era, searcher_model(name, era)) for era in eras]
        yield from (f"### {name}", "", _sentence(variants[-1][1]), "")
        for era, model in variants:
            yield f"In the {era} era:"
            yield ""
            yield from _table(field_rows(model, SearcherSection))


def _hyperparameter_lines() -> Iterator[str]:
    yield "## Hyperparameters"
    yield ""
    yield (
        "A hyperparameter is a constant, or a map whose `type` sets the choice of values. In the "
        "length era, a map without a `type` is a group of hyperparameters."
    )
    yield ""
    for name, model in PARAMETER_TYPES.items():
        yield from (f"### {name}", "", _sentence(model), "")
        yield from _table(field_rows(model))


def _storage_lines() -> Iterator[str]:
    text = "`checkpoint_storage`. Without a `type`, checkpoints are stored in the cluster's store."
    yield from _section("Checkpoint storage", text, field_rows(storage.CheckpointStorage))
    for name, model in storage.storage_models().items():
        yield from (f"### {name}", "", _sentence(model), "")
        yield from _table(field_rows(model, storage.CheckpointStorage))
    yield "## Data layer"
    yield ""
    yield "`data_layer`: the store of `cache_train_dataset` and `cache_validation_dataset`"
    yield "([data](data.md)). The default `type` is `shared_fs`."
    yield ""
    for name, layer in storage.LAYERS.items():
        yield f"### {name} layer"
        yield ""
        yield from _table(field_rows(layer, storage.DataLayer))


def _section(title: str, text: str, rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield text
    yield ""
    yield from _table(rows)


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for *columns, meaning in rows:
        yield f"| {' | '.join((*columns, first_paragraph(meaning)))} |"
    yield ""
    for name, *_, meaning in rows:
        yield from further_paragraphs(name, meaning)


def field_rows(model: type[Section], below: type[Section] | None = None) -> list[tuple[str, ...]]:
    """Return a table row for each field of a model: name, type, default and paragraphs of meaning.

    Fields that a class of `below` declares are left out. A `type` with a single value is left out.
    Raise LookupError for a field without a meaning or with an unknown type.
    """
    known = (
        {find_field_source(below, name).owner for name in below.model_fields} if below else set()
    )
    rows = list[tuple[str, ...]]()
    for name, field in model.model_fields.items():
        written = find_field_source(model, name)
        # The title of a section already names a type with a single value.
        is_tag = name == "type" and written.annotation.count("'") <= len("''")
        if not is_tag and (below is None or written.owner not in known):
            columns = _type_text(written, name, field), _default_text(written, name, field)
            rows.append((f"`{name}`", *columns, written.meaning))
    return rows


def _type_text(written: FieldSource, name: str, field: FieldInfo) -> str:
    if (written.owner, name) in SPELLED_OUT:
        return SPELLED_OUT[written.owner, name]
    annotation = written.annotation.removesuffix(" | None")
    if annotation in TYPES:
        return TYPES[annotation]
    if text := _plain_type(field.annotation, field.metadata):
        return text
    raise LookupError(f"{written.owner}.{name} is of type {annotation}: add it to TYPES")


def _plain_type(hint: Any, metadata: Sequence[Any]) -> str:
    """Return the text of a number, a choice, a list of integers or a map, else ""."""
    if get_origin(hint) is Annotated:
        return _plain_type(hint.__origin__, [*metadata, *hint.__metadata__])
    choices = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) in (UnionType, Union) and len(choices) == 1:
        return _plain_type(choices[0], metadata)
    if get_origin(hint) is Literal:
        *first, last = (f"`{word}`" for word in choices)
        return f"{', '.join(first)} or {last}"
    if get_origin(hint) is tuple and get_args(get_args(hint)[0])[:1] == (int,):
        return "list of integers"
    if isinstance(hint, type) and issubclass(hint, Section):
        return "map"
    if hint not in (int, float):
        return ""
    kind = "integer" if hint is int else "number"
    names = ("ge", "gt", "le")
    bounds = {name: getattr(one, name) for one in metadata for name in names if hasattr(one, name)}
    if "le" in bounds:
        return f"{kind} {bounds['ge']:,} to {bounds['le']:,}"
    return f"{kind} > {bounds['gt']:g}" if "gt" in bounds else kind


def _default_text(written: FieldSource, name: str, field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if name in CHOSEN_BY_CHECK:
        return "drawn" if name == "experiment_seed" else "required"
    if field.is_required():
        return "required"
    if isinstance(value, Length):
        return f"`{{{value.unit}: {value.count}}}`"
    if value is None or isinstance(value, BaseModel) or value == {}:
        return ""
    if isinstance(value, tuple) and any(isinstance(entry, BaseModel) for entry in value):
        return ""
    if written.annotation.endswith("Duration"):
        return f"`{duration_text(value)}`"
    if written.annotation == "ClockTime":
        return f'`"{clock_text(value)}"`'
    return f"`{json.dumps(value)}`"


def _sentence(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").split())
