"""The house rules hold in the whole tree, and each rule can fail."""

import pytest

from tests.unit.house.rules import (
    ROOT,
    RULES,
    Rule,
    Source,
    breaches,
    detcloud_never_imports_the_server,
    each_cloud_stays_in_its_folders,
    each_sdk_has_one_home,
    files_are_short,
    functions_are_short,
    lines_are_short,
    modules_say_what_they_are,
    names_are_nouns_of_the_domain,
    no_exception_is_caught_blindly,
    nothing_is_left_unfinished,
    pure_folders_import_nothing_impure,
    pure_folders_see_no_clock_and_no_chance,
    torch_stays_in_its_folder,
)
from tests.unit.house.tree_report import read_tree

STORE_TYPE = "control_plane/checkpoint_stores/types/tape.py"
ACTOR = "control_plane/actors/trial/actor.py"
CONFIG = "control_plane/config/merge.py"
RANDOMNESS = "control_plane/searchers/randomness.py"
API = "control_plane/api/app.py"
CLI = "harness/detcloud/cli/main.py"
AGENT = "harness/detcloud/agent/node.py"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Rule) -> None:
    breaches_found = read_tree().breaches[rule.__name__]
    assert not breaches_found, "\n".join(breaches_found)


def test_rules_read_the_whole_tree() -> None:
    paths = set(read_tree().paths)
    assert "tests/unit/house/rules.py" in paths
    assert all((ROOT / path).is_file() for path in paths)


def _function(lines: int) -> str:
    # The def line, lines - 2 assignments, a return.
    return "\n".join(["def long():", *["    a = 1"] * (lines - 2), "    return a"])


CAUGHT: list[tuple[Rule, str, str]] = [
    (lines_are_short, API, "a = '" + "x" * 95 + "'"),  # 5 + 95 + 1 = 101
    (files_are_short, API, "a = 1\n" * 501),
    (functions_are_short, API, _function(71)),
    (functions_are_short, ACTOR, _function(61)),
    (functions_are_short, "provisioner/scale_decider.py", _function(61)),
    (functions_are_short, API, "async " + _function(71)),
    (modules_say_what_they_are, API, "a = 1"),
    (names_are_nouns_of_the_domain, "control_plane/utils.py", ""),
    (names_are_nouns_of_the_domain, "control_plane/common/trial.py", ""),
    (names_are_nouns_of_the_domain, "provisioner/instance_manager.py", ""),
    (nothing_is_left_unfinished, API, "# TO" + "DO: later"),
    (nothing_is_left_unfinished, API, "raise NotImplemented" + "Error"),
    (no_exception_is_caught_blindly, API, "try:\n    a()\nexcept:\n    pass"),
    (pure_folders_import_nothing_impure, ACTOR, "import time"),
    (pure_folders_import_nothing_impure, ACTOR, "from os import environ"),
    (pure_folders_import_nothing_impure, ACTOR, "def f():\n    import socket"),
    (pure_folders_import_nothing_impure, ACTOR, "import urllib.request"),
    (pure_folders_import_nothing_impure, ACTOR, "import random"),
    (pure_folders_import_nothing_impure, ACTOR, "import pydantic"),
    (pure_folders_import_nothing_impure, ACTOR, "from control_plane import engine"),
    (pure_folders_import_nothing_impure, ACTOR, "from ...state import table"),
    (pure_folders_import_nothing_impure, CONFIG, "import requests"),
    (pure_folders_import_nothing_impure, STORE_TYPE, "def f():\n    import boto3"),
    (pure_folders_import_nothing_impure, "provisioner/model.py", "import threading"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "import datetime\ndatetime.datetime.now()"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "now = datetime.utcnow"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "import uuid\nuuid.uuid4()"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "from uuid import uuid4\nuuid4()"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "open('x')"),
    (pure_folders_see_no_clock_and_no_chance, RANDOMNESS, "import random\nrandom.random()"),
    (pure_folders_see_no_clock_and_no_chance, RANDOMNESS, "from random import randint"),
    (each_sdk_has_one_home, API, "import sqlite3"),
    (each_sdk_has_one_home, "control_plane/state/table.py", "import boto3"),
    (each_sdk_has_one_home, "control_plane/state/sqlite.py", "import boto3"),
    (each_sdk_has_one_home, API, "from google.cloud import firestore"),
    (each_cloud_stays_in_its_folders, API, "from control_plane.aws import object_store"),
    (each_cloud_stays_in_its_folders, API, "def f():\n    from ..aws.state_table import Table"),
    (each_cloud_stays_in_its_folders, CLI, "import detcloud.agent.aws.instance"),
    (each_cloud_stays_in_its_folders, AGENT, "import_module('detcloud.agent.aws.instance')"),
    (each_cloud_stays_in_its_folders, "infra/deploy.py", "from infra.aws import bundle"),
    (
        each_cloud_stays_in_its_folders,
        "provisioner/clouds/aws/provider.py",
        "from control_plane.gcp.pool_provider import GcpProvider",
    ),
    (torch_stays_in_its_folder, CLI, "import torch"),
    (torch_stays_in_its_folder, CLI, "def f():\n    from torch import nn"),
    (
        torch_stays_in_its_folder,
        "harness/detcloud/core/distributed_context.py",
        "import torch.distributed",
    ),
    (detcloud_never_imports_the_server, CLI, "from control_plane.config import merge"),
    (detcloud_never_imports_the_server, CLI, "def f():\n    import lambdas"),
]

ACCEPTED: list[tuple[Rule, str, str]] = [
    (lines_are_short, API, "a = '" + "x" * 94 + "'"),
    (files_are_short, API, "a = 1\n" * 500),
    (functions_are_short, API, _function(70)),
    (functions_are_short, ACTOR, _function(60)),
    (modules_say_what_they_are, "tests/unit/test_x.py", "a = 1"),
    (pure_folders_import_nothing_impure, ACTOR, "import math, datetime, uuid, urllib.parse"),
    (pure_folders_import_nothing_impure, ACTOR, "from . import pool\nfrom .pool import Pool"),
    (pure_folders_import_nothing_impure, ACTOR, "from control_plane.searchers import asha"),
    (pure_folders_import_nothing_impure, CONFIG, "import yaml, pydantic"),
    (
        pure_folders_import_nothing_impure,
        STORE_TYPE,
        "import pydantic\ndef f():\n    from control_plane.checkpoint_stores import folder_files",
    ),
    (pure_folders_import_nothing_impure, RANDOMNESS, "import random"),
    (pure_folders_import_nothing_impure, API, "import time"),
    (pure_folders_see_no_clock_and_no_chance, RANDOMNESS, "import random\nrandom.Random(1)"),
    (pure_folders_see_no_clock_and_no_chance, ACTOR, "message.random_seed, state.now"),
    (each_sdk_has_one_home, "control_plane/state/sqlite.py", "import sqlite3"),
    (each_sdk_has_one_home, "provisioner/clouds/aws/provider.py", "import boto3"),
    (each_sdk_has_one_home, "bench/states.py", "import sqlite3"),
    (each_cloud_stays_in_its_folders, "lambdas/aws/tick.py", "import control_plane.aws"),
    (each_cloud_stays_in_its_folders, "infra/aws/stack.py", "import pulumi_aws as aws"),
    (each_cloud_stays_in_its_folders, "lambdas/gcp/tick.py", "from google.auth import aws"),
    (each_cloud_stays_in_its_folders, "infra/clouds.py", "PROGRAMS = {'aws': 'infra.aws.x'}"),
    (each_cloud_stays_in_its_folders, AGENT, "import_module(f'detcloud.agent.{cloud}.x')"),
    (each_cloud_stays_in_its_folders, API, "CLOUD = 'aws'\nFILE = 'docs/aws.md'"),
    (torch_stays_in_its_folder, "harness/detcloud/pytorch/trial.py", "import torch"),
    (
        torch_stays_in_its_folder,
        "harness/detcloud/core/distributed_context.py",
        "def f():\n import torch",
    ),
    (torch_stays_in_its_folder, CLI, "import torchgen"),
    (detcloud_never_imports_the_server, CLI, "from detcloud.cli import main"),
    (detcloud_never_imports_the_server, "local_cluster/__main__.py", "import control_plane"),
]


@pytest.mark.parametrize(("rule", "path", "text"), CAUGHT)
def test_rule_finds_the_breach(rule: Rule, path: str, text: str) -> None:
    assert breaches(rule, [Source(path, text)]) != []


@pytest.mark.parametrize(("rule", "path", "text"), ACCEPTED)
def test_rule_accepts_allowed_code(rule: Rule, path: str, text: str) -> None:
    assert breaches(rule, [Source(path, text)]) == []


def test_rules_have_a_snippet_with_a_breach() -> None:
    assert {rule for rule, _, _ in CAUGHT} == set(RULES)


def test_breach_names_file_and_line() -> None:
    source = Source(API, '"""Says."""\n\nimport sqlite3\n')
    assert breaches(each_sdk_has_one_home, [source]) == [
        f"{API}:3: sqlite3 is imported outside control_plane/state/sqlite.py"
    ]
