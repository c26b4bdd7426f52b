from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.types.azure import Azure
from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from detcloud.shared.masking import MASK, PLAIN_VARIABLES
from tests.unit.config.samples import LENGTH, change_fields, check_changed, to_yaml

CANARY = "canary-5f1c"
SECRETS = {
    "checkpoint_storage": {
        "type": "s3",
        "bucket": "b",
        "access_key": CANARY,
        "secret_key": CANARY,
    },
    "data_layer": {
        "type": "s3",
        "bucket": "b",
        "bucket_directory_path": "p",
        "access_key": CANARY,
        "secret_key": CANARY,
    },
    "environment.registry_auth": {
        "username": "u",
        "password": CANARY,
        "auth": CANARY,
        "identitytoken": CANARY,
        "registrytoken": CANARY,
    },
    "environment.pod_spec": {"spec": {"env": [{"name": "x", "token": CANARY}]}},
}


def test_secrets_are_masked_in_values_and_repr() -> None:
    config = check_changed(LENGTH, SECRETS)
    public = config.masked_values()
    assert public["checkpoint_storage"]["secret_key"] == "********"
    assert public["environment"]["registry_auth"]["password"] == "********"
    for text in (json.dumps(public), repr(config), str(config), repr(config.checkpoint_storage)):
        assert CANARY not in text


def test_stored_form_keeps_secrets() -> None:
    config = ExperimentConfig.from_json(check_changed(LENGTH, SECRETS).to_json())
    storage = config.checkpoint_storage
    assert isinstance(storage, S3)
    assert storage.secret_key is not None
    assert storage.secret_key.reveal() == CANARY


def test_secrets_of_azure_are_masked() -> None:
    azure = {"type": "azure", "container": "c", "connection_string": CANARY}
    config = check_changed(LENGTH, {"checkpoint_storage": azure})
    assert isinstance(config.checkpoint_storage, Azure)
    assert CANARY not in json.dumps(config.masked_values())


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("tensorboard_storage", {"type": "s3", "access_key": CANARY, "secret_key": CANARY}),
        ("tensorboard_storage", {"type": "azure", "connection_string": CANARY}),
        ("integrations", {"pachyderm": {"pachd": {"host": "h", "token": CANARY}}}),
        ("internal", {"native": {"logins": [{"password": CANARY}]}}),
    ],
)
def test_secrets_of_unused_sections_are_masked(section: str, value: dict[str, object]) -> None:
    config = check_changed(LENGTH, {section: value})
    assert CANARY not in json.dumps(config.masked_values())
    assert "********" in json.dumps(config.masked_values()[section])
    assert getattr(ExperimentConfig.from_json(config.to_json()), section) == value


@pytest.mark.parametrize(
    "name", ["token", "hf_token", "password", "DB_PASSWORD", "api_key", "secret.key", "Secret"]
)
def test_data_reach_the_trial_unmasked_and_are_shown_masked(name: str) -> None:
    data = {"deep": [{name: CANARY}], "tokenizer": "bert", "key": "image", "num_tokens": 5}
    config = ExperimentConfig.from_json(check_changed(LENGTH, {"data": data}).to_json())
    assert config.trial_values()["data"] == data
    assert config.masked_values()["data"] == {**data, "deep": [{name: MASK}]}
    assert CANARY not in repr(config)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "PGPASSWORD", "wandb_api_key", "DATABASE_URL", "PGPASS", "DATA_DIR"],
)
@pytest.mark.parametrize("shape", ["list", "map"])
def test_variables_are_masked_unless_listed_in_shown_variables(name: str, shape: str) -> None:
    listed = [f"{name}={CANARY}=x", "TOKENIZERS_PARALLELISM=false", "MODE=fast"]
    variables = listed if shape == "list" else {"cpu": listed, "gpu": listed}
    fields = {
        "environment.environment_variables": variables,
        "environment.shown_variables": ["MODE"],
    }
    config = check_changed(LENGTH, fields)
    environment = config.masked_values()["environment"]
    assert environment["shown_variables"] == ["MODE"]
    shown = environment["environment_variables"]
    assert shown["cpu"] == shown["cuda"] == [f"{name}={MASK}", *listed[1:]]
    assert CANARY not in repr(config)
    stored = ExperimentConfig.from_json(config.to_json())
    assert stored.environment.environment_variables.reveal()["cpu"] == listed
    # A preview of a search accepts masked values.
    again = check_config(json.dumps(config.masked_values()), accepts_masks=True)
    assert again.masked_values() == config.masked_values()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("checkpoint_storage.secret_key", [CANARY]),
        ("checkpoint_storage.secret_kee", CANARY),
        ("checkpoint_storage", CANARY),
        ("environment.registry_auth", CANARY),
        ("environment.registry_auth.password", {"x": CANARY}),
        ("environment.environment_variables", [CANARY]),
        ("environment.environment_variables", CANARY),
        ("environment.environment_variables", {"cpu": CANARY}),
        ("environment.environment_variables", {"HF_TOKEN": CANARY}),
        ("environment.environment_variables", [["TOKEN", CANARY]]),
        ("environment.environment_variables", [{"TOKEN": CANARY}]),
        ("checkpoint_storage.type", None),
    ],
)
def test_problems_of_configurations_show_no_secret(path: str, value: object) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_config(to_yaml(change_fields(change_fields(LENGTH, SECRETS), {path: value})))
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value.problems)


def test_manual_lists_the_plain_variables() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "manage.md").read_text()
    listed = text.partition("These settings of libraries are always shown:\n\n")[2]
    paragraph = " ".join(listed.partition("\n\n")[0].split())
    assert paragraph == ", ".join(f"`{name}`" for name in sorted(PLAIN_VARIABLES)) + "."


def test_numeric_secret_is_refused_without_the_value() -> None:
    with pytest.raises(ConfigInvalid, match="must be a non-empty string") as caught:
        check_changed(LENGTH, {**SECRETS, "checkpoint_storage.secret_key": 12345678})
    assert "12345678" not in repr(caught.value.problems)


def test_yaml_errors_quote_no_line() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_config(f"a: 1\n secret_key: {CANARY}\n")
    assert CANARY not in str(caught.value)


URL = f"http://me:{CANARY}@proxy:3128/x"
SHOWN_URL = f"http://{MASK}@proxy:3128/x"


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        (
            "environment.environment_variables",
            {"cpu": [f"http_proxy={URL}"], "cuda": []},
            {"cpu": [f"http_proxy={MASK}"], "cuda": [], "rocm": []},
        ),
        ("data", {"source": [URL, "a@b"]}, {"source": [SHOWN_URL, "a@b"]}),
        ("integrations", {"host": URL}, {"host": SHOWN_URL}),
    ],
)
def test_logins_in_urls_are_shown_masked(path: str, value: Any, shown: Any) -> None:
    config = check_changed(LENGTH, {path: value})
    masked: Any = config.masked_values()
    for key in path.split("."):
        masked = masked[key]
    assert masked == shown
    assert CANARY in config.to_json().decode()


def test_logins_in_the_urls_of_stores_are_shown_masked() -> None:
    storage = {"type": "s3", "bucket": "b", "endpoint_url": URL}
    config = ExperimentConfig.from_json(
        check_changed(LENGTH, {"checkpoint_storage": storage}).to_json()
    )
    assert isinstance(config.checkpoint_storage, S3)
    assert config.checkpoint_storage.endpoint_url == URL
    assert config.masked_values()["checkpoint_storage"]["endpoint_url"] == SHOWN_URL


@pytest.mark.parametrize("path", ["max_restarts", "checkpoint_policy", "bind_mounts", "searcher"])
def test_problems_show_no_login_of_a_url(path: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_changed(LENGTH, {path: URL})
    assert CANARY not in repr(caught.value.problems)
