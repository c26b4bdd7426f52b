"""The registries that a login of the cluster or of a template is sent to."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.environment import RegistryAuth
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import check_cluster
from tests.unit.config.samples import LENGTH, STEP, change_fields, find_problems, to_yaml

OURS = {"username": "ours", "password": "canary-ours"}
THEIRS = "determinedai/environments:cuda-11.3-pytorch-1.12-gpu-0.21.0"


def login_layer(image: Any = None, login: Any = None) -> dict[str, Any]:
    fields = {"image": image, "registry_auth": login}
    return {"environment": {name: item for name, item in fields.items() if item is not None}}


def login_account(
    own: dict[str, Any], cluster: Any, template: Any = None, era: dict[str, Any] = LENGTH
) -> str | None:
    """Return the user name of the login of the trial's agent, or None without a login."""
    above = None if template is None else to_yaml(template)
    login = check_config(to_yaml({**era, **own}), template=above, cluster=cluster).environment
    return login.registry_auth.username if login.registry_auth else None


@pytest.mark.parametrize("era", [STEP, LENGTH])
@pytest.mark.parametrize(
    "image",
    [
        "evil.example/x",
        "evil.example:443/x",
        "EVIL/x",
        "org/on-docker-hub:1",
        "docker.io/library/x",
        "ghcr.io.evil.example/x",
        {"cpu": "evil.example/x"},
        {"gpu": "evil.example/x"},
        {"cpu": "ghcr.io/org/image:1", "cuda": "evil.example/x"},
    ],
)
@pytest.mark.parametrize(
    "login",
    [
        OURS,
        {**OURS, "server": "https://ghcr.io"},
        {**OURS, "serveraddress": "https://ghcr.io"},
    ],
)
def test_cluster_login_is_withheld_from_other_registries(
    era: dict[str, Any], image: Any, login: dict[str, str]
) -> None:
    cluster = login_layer({"cpu": "ghcr.io/org/cpu:1", "cuda": "ghcr.io/org/cuda:1"}, login)
    assert login_account(login_layer(image), cluster, era=era) is None
    assert login_account({}, cluster, login_layer(image), era) is None
    assert login_account({}, cluster, era=era) == "ours"


@pytest.mark.parametrize(
    ("image", "login", "own"),
    [
        ("ghcr.io/org/cpu:1", OURS, "ghcr.io/team/mine:2"),
        ("ghcr.io/org/cpu:1", OURS, {"cuda": "GHCR.io/team/mine:2"}),
        ("org/cpu:1", {**OURS, "server": "ghcr.io/v2/"}, "ghcr.io/team/mine:2"),
        (None, {**OURS, "server": "host:5000"}, "host:5000/mine"),
        (None, OURS, "team/mine:2"),
        ("org/cpu:1", {**OURS, "server": "https://index.docker.io/v1/"}, "docker.io/team/mine"),
        # The cluster's image replaces the image of Determined.
        ("ghcr.io/org/cpu:1", OURS, THEIRS),
    ],
)
def test_cluster_login_is_used_for_all_images_of_the_registry(
    image: Any, login: dict[str, str], own: Any
) -> None:
    assert login_account(login_layer(own), login_layer(image, login)) == "ours"


def test_login_without_server_and_image_is_for_docker_hub() -> None:
    assert login_account(login_layer("ghcr.io/x"), login_layer(None, OURS)) is None


def test_template_login_is_withheld_from_other_registries() -> None:
    template = login_layer("registry.example/x", {"username": "template", "password": "p"})
    cluster = login_layer("ghcr.io/x", OURS)
    assert login_account({}, cluster, template) == "template"
    assert login_account(login_layer("registry.example/mine"), cluster, template) == "template"
    assert login_account(login_layer("ghcr.io/mine"), cluster, template) is None


def test_cluster_login_stays_bound_if_a_template_hides_the_image() -> None:
    cluster = login_layer("ghcr.io/x", OURS)
    for hidden in ({"environment": {"image": None}}, login_layer(THEIRS)):
        assert login_account(login_layer("org/on-docker-hub"), cluster, hidden, STEP) is None


def test_user_login_inherits_no_field_of_the_cluster_login() -> None:
    cluster = login_layer("ghcr.io/x", {**OURS, "server": "ghcr.io", "email": "ours@x"})
    mine = {"username": "me", "password": "mine"}
    text = to_yaml({**LENGTH, **login_layer("evil.example/x", mine)})
    user_login = check_config(text, cluster=cluster).environment.registry_auth
    assert user_login is not None
    assert (user_login.username, user_login.server, user_login.email) == ("me", None, None)
    partial = to_yaml({**LENGTH, **login_layer(None, {"server": "evil.example"})})
    for text, overrides in (
        (partial, []),
        (to_yaml(LENGTH), ["environment.registry_auth.server=evil.example"]),
    ):
        config = check_config(text, cluster=cluster, overrides=overrides)
        assert config.environment.registry_auth == RegistryAuth(server="evil.example")
        assert b"canary" not in config.to_json()


def test_image_of_an_override_counts_as_image_of_the_user() -> None:
    cluster = login_layer("ghcr.io/x", OURS)
    config = check_config(
        to_yaml(LENGTH), cluster=cluster, overrides=["environment.image=evil.example/x"]
    )
    assert config.environment.registry_auth is None


def test_malformed_image_is_refused_by_the_validation() -> None:
    for image in (5, ["x"], {"cpu": 5}):
        text = to_yaml(change_fields(LENGTH, {"environment.image": image}))
        assert find_problems(text, cluster=login_layer("ghcr.io/x", OURS))
    text = to_yaml({**LENGTH, "environment": 5})
    (problem,) = find_problems(
        text, template=to_yaml(login_layer("x")), cluster=login_layer("ghcr.io/x", OURS)
    )
    assert problem.path == "environment"


def test_pool_with_a_different_registry_has_no_cluster_login() -> None:
    text = """
task_container_defaults:
  image: ghcr.io/x
  registry_auth: {username: ours, password: canary-ours}
resource_pools:
  - pool_name: default
    task_container_defaults: {image: registry.example/x}
  - pool_name: same
    task_container_defaults: {image: ghcr.io/y}
"""
    cluster = check_cluster(text)
    environments = [task_defaults(pool, cluster)["environment"] for pool in cluster.resource_pools]
    assert ["registry_auth" in environment for environment in environments] == [False, True]
