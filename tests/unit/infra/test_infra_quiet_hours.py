"""The check of quiet hours before a deployment, in all clouds."""

import pytest

from tests.conftest import require

require("pulumi")

from infra.program_checks import check_pools  # noqa: E402
from infra.stack_program import SettingsInvalid  # noqa: E402


def config(rules: str) -> str:
    return f"resource_pools: [{{pool_name: default, quiet_hours: {rules}}}]\n"


def test_valid_quiet_hours_are_deployed() -> None:
    cluster = check_pools(config("[{end: '06:00', time_zone: Europe/Berlin}]"), lambda _: [])
    assert len(cluster.resource_pools[0].quiet_hours) == 1


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            "[{end: '06:00', time_zone: Berlin}]",
            r"resource_pools\[0\]\.quiet_hours\[0\]\.time_zone",
        ),
        ("[{}]", r"resource_pools\[0\]\.quiet_hours: cover the whole week"),
    ],
)
def test_wrong_quiet_hours_are_not_deployed(rules: str, text: str) -> None:
    with pytest.raises(SettingsInvalid, match=text):
        check_pools(config(rules), lambda _: [])
