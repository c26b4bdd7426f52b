"""Each cloud has a folder in each root and an entry in each registry."""

from pathlib import PurePosixPath

import pytest

from control_plane.config.provider_types import PROVIDERS
from detcloud.agent.clouds import CLOUDS as AGENT_CLOUDS
from detcloud.cli.framework.deployable_clouds import CLOUDS as DEPLOYABLE_CLOUDS
from infra.clouds import PROGRAMS
from lambdas.clouds import CLOUDS as FUNCTION_CLOUDS
from tests.unit.house.rules import CLOUD_REGISTRATIONS, CLOUDS, ROOT

# The clouds that each registry names.
REGISTRIES = {
    "harness/detcloud/agent/clouds.py": {cloud.name for cloud in AGENT_CLOUDS},
    "harness/detcloud/cli/framework/deployable_clouds.py": {
        deployable_cloud.name for deployable_cloud in DEPLOYABLE_CLOUDS
    },
    "infra/clouds.py": set(PROGRAMS),
    "lambdas/clouds.py": set(FUNCTION_CLOUDS),
}
ROOTS = ("control_plane", "provisioner/clouds", "lambdas", "infra", "harness/detcloud/agent")


# Registries with clouds that cannot be deployed yet.
PARTS = ("harness/detcloud/agent/clouds.py", "lambdas/clouds.py")


@pytest.mark.parametrize("registry", REGISTRIES)
def test_registries_name_the_same_clouds(registry: str) -> None:
    assert REGISTRIES[registry] == set(PROGRAMS) or registry in PARTS
    assert set(PROGRAMS) <= REGISTRIES[registry] <= set(PROVIDERS)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("cloud", PROGRAMS)
def test_cloud_has_a_folder_in_each_root(cloud: str, root: str) -> None:
    assert (ROOT / root / cloud / "__init__.py").is_file()


def test_recipe_of_a_new_cloud_names_all_registries() -> None:
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A new cloud")[2]
    recipe = recipe.partition("\n## ")[0]
    for registry in {*REGISTRIES, *CLOUD_REGISTRATIONS}:
        assert PurePosixPath(registry).name in recipe, registry


def test_cloud_rule_covers_the_clouds() -> None:
    assert {"aws", "gcp"} <= set(CLOUDS)
    assert "local" not in CLOUDS
