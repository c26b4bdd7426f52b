"""The self-test's tunnel, on a cluster that refuses tunnels."""

from typing import Any, cast

import pytest

from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.verification.report import StepReport, StepSkipped
from detcloud.cli.verification.tunnel_check import check_tunnel
from detcloud.client import Client
from detcloud.shared.http import ApiError


class Refusing:
    def __init__(self, status: int) -> None:
        self.status = status

    def post(self, path: str, body: Any = None) -> Any:
        assert path == "/tunnels"
        raise ApiError(self.status, "code", "no tunnel")


@pytest.mark.parametrize(("status", "error"), [(404, StepSkipped), (503, ApiError)])
def test_missing_relay_is_skipped_and_other_refusals_fail(
    status: int, error: type[Exception]
) -> None:
    client = cast(Client, Refusing(status))
    with show_progress("tunnel") as progress, pytest.raises(error, match="no tunnel"):
        check_tunnel(client, 1, 20_000, StepReport("tunnel"), progress)
