"""Each field of the reference has an effect or gives a notice.

A configuration with a value is compared with a configuration without the value: the job, the
settings of trials, the search, and a trial's specification, container and variables. For fields
that only training code reads, `PROVEN_BY` names the test of the effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from control_plane.agents.spec import spec_builder
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.advice import config_warnings
from control_plane.config.check import check_config
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.integrations import source_commit, webhook_choice
from control_plane.config.problems import ConfigInvalid
from control_plane.config.retention import stored_retention
from control_plane.config.section import REVEAL
from control_plane.config.trial_settings import (
    job_of,
    lifecycle_of,
    pool_preferences,
    trial_settings,
)
from control_plane.findings import Loc, path_text
from control_plane.usecases.submission import config_retention
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.assignment import Assignment
from detcloud.agent.assignment.kernel_cache import kernel_folder
from detcloud.agent.assignment.unused_settings import container_notices, process_notices
from detcloud.agent.docker.container import ContainerRules, container_body
from detcloud.agent.docker.images import image_request
from tests.unit.config.samples import LENGTH, STEP
from tests.unit.config.test_config_searchers import LENGTH_SEARCHERS, STEP_SEARCHERS
from tests.unit.config.test_config_wrong_values import experiment_sections, put_value

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "/tmp"
BASES: dict[Era, dict[str, Any]] = {
    Era.STEP: STEP,
    Era.LENGTH: {
        **LENGTH,
        "records_per_epoch": 90,
        "hyperparameters": {"global_batch_size": 5},
        "min_validation_period": {"epochs": 1},
    },
}
SEARCHERS = {Era.STEP: STEP_SEARCHERS, Era.LENGTH: LENGTH_SEARCHERS}
GRIDS = {
    Era.STEP: {"name": "grid", "metric": "loss", "max_steps": 9},
    Era.LENGTH: {"name": "grid", "metric": "loss", "max_length": {"batches": 9}},
}
BUCKET = {"bucket": "b", "bucket_directory_path": "c"}
RANGE = {"minval": 1, "maxval": 9, "count": 2}
# Fields by place and type without which a section's further fields have no effect.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("checkpoint_storage", "shared_fs"): {"host_path": FOLDER},
    ("checkpoint_storage", "directory"): {"container_path": "/c"},
    ("checkpoint_storage", "hdfs"): {"hdfs_url": "http://g:2", "hdfs_path": "/c"},
    ("checkpoint_storage", "s3"): {"bucket": "b", "access_key": "k", "secret_key": "s"},
    ("checkpoint_storage", "gcs"): {"bucket": "b"},
    ("checkpoint_storage", "azure"): {"container": "c", "connection_string": "s"},
    ("data_layer", "shared_fs"): {
        "host_storage_path": FOLDER,
        "container_storage_path": "/c",
    },
    ("data_layer", "gcs"): {
        **BUCKET,
        "local_cache_host_path": FOLDER,
        "local_cache_container_path": "/c",
    },
    ("data_layer", "s3"): {
        **BUCKET,
        "access_key": "k",
        "secret_key": "s",
        "local_cache_host_path": FOLDER,
        "local_cache_container_path": "/c",
    },
    ("hyperparameters", "const"): {"val": 1},
    ("hyperparameters", "int"): RANGE,
    ("hyperparameters", "double"): RANGE,
    ("hyperparameters", "log"): {**RANGE, "base": 10},
    ("hyperparameters", "categorical"): {"vals": [1, 2]},
    ("bind_mounts", ""): {"host_path": FOLDER, "container_path": "/c"},
    ("devices", ""): {"host_path": "/dev/null", "container_path": "/dev/zero"},
    ("profiling", ""): {"enabled": True},
    ("schedule", ""): {"cron": "0 3 * * *"},
    ("registry_auth", ""): {"username": "u", "password": "p"},
}
# `find_change` uses the first candidate that is valid and changes the configuration.
CANDIDATES: tuple[Any, ...] = (
    *(True, False, 3, 7, 2.5, 0.7, 30, "x", "a/b", "/usr", "http://h:1", "https://b.net", "6h"),
    *(
        "O2",
        "rshared",
        "none",
        "epochs",
        "batches",
        "aggressive",
        "r",
        "loss:er",
        "allow",
        ["a"],
        ["A=1"],
        [2, 1],
    ),
    *({"webhooks": {"exclude": True}}, {"log_retention_days": 7}),
    *({"a": 1}, {"a": "b"}, {"batches": 70}, {"epochs": 2}, {"truncate_fraction": 0.3}),
    *({"username": "u", "password": "p"}, [{"proxy_port": 1}]),
    *([{"host_path": FOLDER, "container_path": "/b"}], ["/dev/null:/dev/zero"], [{"pattern": "a"}]),
    {"resample_probability": 0.3, "perturb_factor": 0.3},
)
# The default of `sync_timings` differs between releases, so that neither value has an effect.
# These fields select a section or are sections, and `bases` yields each section separately.
CHOICES = {
    *("type", "searcher", "hyperparameters", "resources", "environment", "checkpoint_storage"),
    *("reproducibility", "optimizations", "profiling", "debugger", "data_layer", "hang_detection"),
    "low_use",
    "schedule",
}
CONTEXT = "tests/unit/pytorch/test_pytorch_context.py"
GANG = "tests/unit/pytorch/test_pytorch_gang.py"
DEBUGGER = "tests/unit/core/test_core_debugger.py"
SCHEDULES = "tests/unit/usecases/test_usecases_scheduled_runs.py"
PROVEN_BY = {
    "data": CONTEXT,
    "debugger.attach_timeout": DEBUGGER,
    "debugger.enabled": DEBUGGER,
    "environment.proxy_ports": "tests/unit/cli/commands/test_cli_commands_tunnel.py",
    "environment.shown_variables": "tests/unit/config/test_config_secrets.py",
    "exit_timeout": "tests/unit/core/test_core_thread_watch.py",
    "optimizations.aggregation_frequency": CONTEXT,
    "optimizations.average_aggregated_gradients": CONTEXT,
    "optimizations.asynchronous_checkpoints": "tests/unit/pytorch/test_pytorch_saving.py",
    "optimizations.average_training_metrics": GANG,
    "optimizations.gradient_compression": GANG,
    "optimizations.tensor_fusion_threshold": GANG,
    "profiling.enabled": "tests/unit/core/test_core_profiler.py",
    "schedule.catch_up": SCHEDULES,
    "schedule.cron": SCHEDULES,
    "schedule.overlap": SCHEDULES,
    "schedule.time_zone": SCHEDULES,
}


def bases() -> Iterator[tuple[dict[str, Any], Loc, list[str]]]:
    """Yield a configuration with each section of the reference, the section's place and fields."""
    account = {"container": "c", "account_url": "https://a.net", "credential": "k"}
    for base in BASES.values():
        section = {"type": "azure", **account}
        yield put_value(base, ("checkpoint_storage",), section), ("checkpoint_storage",), [*account]
    for era, place, model, given in experiment_sections():
        fields = [name for name in model.model_fields if name not in CHOICES]
        kind = given.get("type", "")
        if not place:
            yield BASES[era], place, fields
        elif place == ("searcher",):
            for searcher in SEARCHERS[era]:
                if searcher["name"] == given["name"]:
                    section = {"metric": "loss", **searcher}
                    yield put_value(BASES[era], place, section), place, fields[1:]
        else:
            name = next(str(key) for key in reversed(place) if key not in (0, "h"))
            section = {**NEEDED.get((name, kind), {}), **({"type": kind} if kind else {})}
            base = put_value(BASES[era], place, section)
            base |= {"searcher": GRIDS[era]} if name == "hyperparameters" else {}
            yield base, place, fields


def effects(config: ExperimentConfig, folder: Path) -> dict[str, str]:
    """Return the effects of a configuration by part, as text."""
    settings = trial_settings(config, "pool", 1_000)
    stored = config.to_json().decode()
    definition = SimpleNamespace(
        config=stored, test_mode=False, warm_start=None, restored_from=None
    )
    searcher = config.searcher
    experiment = SimpleNamespace(
        experiment_id=1,
        owner="ada",
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        ends_ms=None,
    )
    trial = SimpleNamespace(
        trial_id=2,
        seed=3,
        hparams={"global_batch_size": 5},
        settings=settings,
        counts_epochs=settings.lengths.counts_epochs,
    )
    trial.checkpoint = trial.inherited_checkpoint = trial.metric_steps = trial.discarded_from = None
    trial.recent_damages, trial.replacement, trial.allocation = (), None, None
    build_spec = spec_builder("cluster", Directory(type="directory", container_path="/own"))
    spec = build_spec(cast(Any, experiment), cast(Any, definition), cast(Any, trial))
    directory = AllocationDirectory(folder, "2.1")
    directory.create()
    given = directory, spec, (), 1, 100, spec["environment_variables"]
    assignment = Assignment(*given, keeps_kernels=True)
    section = assignment.section("environment")
    variables = assignment.environment({"PYTHONPATH": ""})
    parts = {
        "list": (config.name, config.description, config.labels, config.workspace, config.project),
        "job": (job_of(config, 1_000), config.resources.pools, pool_preferences(config)),
        "settings": (settings, lifecycle_of(config), config_retention(config), config.time_metric),
        "search": config.search_plan(),
        "spec": {name: value for name, value in spec.items() if name != "config"},
        "container": container_body(assignment, ContainerRules(folder, "a", 1, 1), lambda name: 1),
        "image": image_request("org/image", section, spec["registry_auth"]),
        "kernels": kernel_folder(assignment),
        "webhooks": webhook_choice(config.integrations),
        "retention": stored_retention(config.retention_policy),
        "source": source_commit(config.integrations),
        # The variable with the whole configuration is no effect.
        "variables": {k: v for k, v in variables.items() if k != "DET_EXPERIMENT_CONFIG"},
    }
    return {name: repr(value) for name, value in parts.items()}


def notices_of(config: ExperimentConfig) -> list[str]:
    """Return the notices of a configuration, at the submission and in the logs of trials."""
    values = config.trial_values()
    notices = [*config_warnings(config), *container_notices(values, "", device="cpu")]
    return [
        *notices,
        *(line for kind in ("cpu", "cuda") for line in process_notices(values, device=kind)),
    ]


def find_change(base: dict[str, Any], loc: Loc) -> ExperimentConfig | None:
    """Return `base` changed by a valid candidate at a place; None if no candidate is a change."""
    before = check_config(json.dumps(base)).model_dump(mode="json", context=REVEAL)
    for candidate in CANDIDATES:
        try:
            config = check_config(json.dumps(put_value(base, loc, candidate)))
        except ConfigInvalid:
            continue
        if config.model_dump(mode="json", context=REVEAL) != before:
            return config
    return None


def test_configuration_fields_have_an_effect_or_a_notice(tmp_path: Path) -> None:
    paths, acting, silent = set[str](), set[str](), set[str]()
    for base, place, fields in bases():
        plain = check_config(json.dumps(base))
        before = effects(plain, tmp_path), notices_of(plain)
        for field in fields:
            path = path_text((*place, field))
            paths.add(path)
            if changed := find_change(base, (*place, field)):
                acts = (effects(changed, tmp_path), notices_of(changed)) != before
                (acting if acts else silent).add(path)
    # A field may have values with and without an effect.
    assert silent - acting == {*PROVEN_BY, "profiling.sync_timings"}, (
        "a field that training code reads is in PROVEN_BY with the test of its effect; any other "
        "field changes a part of `effects`, or is told about in `notices_of`"
    )
    assert paths == acting | silent


@pytest.mark.parametrize("path", PROVEN_BY)
def test_tests_of_fields_for_training_code_set_the_field(path: str) -> None:
    text = (ROOT / PROVEN_BY[path]).read_text()
    assert f'"{path.split(".")[-1]}"' in text or f"{path}=" in text
