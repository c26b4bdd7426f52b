"""Fixtures with accounts at simulated clouds, shared by the tests of the providers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# A cloud's packages may not be installed.
if TYPE_CHECKING:
    from tests.unit.provisioner import ec2_account, gce_account


@pytest.fixture(scope="module")
def lasting() -> Iterator[ec2_account.Account]:
    from tests.unit.provisioner import ec2_account

    with ec2_account.open_account() as account:
        yield account


@pytest.fixture
def ec2(lasting: ec2_account.Account) -> ec2_account.Account:
    lasting.reset()
    return lasting


@pytest.fixture(scope="module")
def lasting_gce() -> Iterator[gce_account.Account]:
    from tests.unit.provisioner import gce_account

    with gce_account.open_account() as account:
        yield account


@pytest.fixture
def gce(lasting_gce: gce_account.Account) -> gce_account.Account:
    lasting_gce.reset()
    return lasting_gce
