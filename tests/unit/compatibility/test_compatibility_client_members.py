"""Members of the classes of Determined's client.

`client_members.json` has the public members of release 0.38.1: the parameters of a method, None for
a field or a member of an enumeration. A member works here, or the error names a replacement.
"""

import inspect
import json
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Checkpoint, Experiment, Model, ModelVersion, Trial
from detcloud.compatibility.client import INSTEAD
from detcloud.compatibility.handles import missing_name_error
from detcloud.compatibility.modules import module_namespace
from detcloud.compatibility.projects import INSTEAD_OF_PROJECT, INSTEAD_OF_WORKSPACE
from detcloud.compatibility.users import INSTEAD_OF_USER

CLIENT: Any = module_namespace("determined.experimental.client")["__getattr__"]
MEMBERS: dict[str, dict[str, list[str] | None]] = json.loads(
    (Path(__file__).parent / "client_members.json").read_text("utf-8")
)
CASES = [(kind, name) for kind, members in MEMBERS.items() for name in members]
# Classes of `detcloud.client`; their fields are also fields of Determined's objects.
CLUSTER_CLASSES = {
    "Checkpoint": Checkpoint,
    "Experiment": Experiment,
    "Model": Model,
    "ModelVersion": ModelVersion,
    "Trial": Trial,
}
SENTENCES: dict[str, Mapping[str, str]] = {
    "Determined": INSTEAD,
    "Project": INSTEAD_OF_PROJECT,
    "User": INSTEAD_OF_USER,
    "Workspace": INSTEAD_OF_WORKSPACE,
}
# Values of Determined's enumerations that detcloud has no field for.
UNSORTABLE = {
    "ExperimentSortBy": {
        "DESCRIPTION",
        "END_TIME",
        "NUM_TRIALS",
        "USER",
        "FORKED_FROM",
        "RESOURCE_POOL",
        "PROJECT_ID",
        "CHECKPOINT_SIZE",
        "CHECKPOINT_COUNT",
    },
    "TrialSortBy": {"CHECKPOINT_SIZE", "LOG_RETENTION_DAYS"},
}
CALL = re.compile(r"use (`detcloud \w|detcloud\.Client|[A-Z]?\w+\.\w|\w+\()")


def class_of(kind: str) -> Any:
    return CLIENT(kind)


def sentence_for(kind: str, name: str) -> str | None:
    sentences = SENTENCES.get(kind, getattr(class_of(kind), "instead", {}))
    return sentences.get(name)


def has_member(kind: str, name: str) -> bool:
    fields = getattr(class_of(kind), "__dataclass_fields__", {})
    return name in fields or any(
        hasattr(owner, name) for owner in (class_of(kind), CLUSTER_CLASSES.get(kind)) if owner
    )


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[".".join(case) for case in CASES])
def test_a_client_member_works_or_the_error_names_a_replacement(kind: str, name: str) -> None:
    if name in UNSORTABLE.get(kind, set()):
        assert not hasattr(class_of(kind), name)
        return
    sentence = sentence_for(kind, name)
    if sentence is None:
        assert has_member(kind, name)
    else:
        assert CALL.search(sentence), sentence
        error = missing_name_error(kind, name, {name: sentence})
        assert str(error) == f"{kind}.{name} is not supported by detcloud: {sentence}"


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[".".join(case) for case in CASES])
def test_a_method_has_the_original_parameters(kind: str, name: str) -> None:
    parameters = MEMBERS[kind][name]
    cls = class_of(kind)
    if parameters is None or sentence_for(kind, name) is not None or issubclass(cls, Enum):
        return
    method = getattr(cls, name, None) or getattr(CLUSTER_CLASSES[kind], name)
    if isinstance(method, property):
        return
    ours = inspect.signature(method).parameters
    accepts_others = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in ours.values()
    )
    assert accepts_others or set(parameters) <= ours.keys()
