"""The account at EC2 that the tests of its cloud share."""

from collections.abc import Iterator

import pytest

from tests.unit.provisioner.ec2_account import Account, open_account


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as found:
        yield found


@pytest.fixture
def ec2(lasting: Account) -> Account:
    lasting.reset()
    return lasting
