"""Access to the API with and without a distribution in front."""

import hashlib

import pytest

from infra.aws import front as stack
from lambdas.aws.front import ORIGIN_HEADER, comes_through_distribution

SECRET = "s" * 32
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [({ORIGIN_HEADER: SECRET}, True), ({ORIGIN_HEADER: f"{SECRET}x"}, False), ({}, False)],
)
def test_requests_need_the_distributions_secret(headers: dict[str, str], is_taken: bool) -> None:
    assert comes_through_distribution({"headers": headers}, DIGEST) is is_taken


def test_requests_need_no_secret_without_a_distribution() -> None:
    assert comes_through_distribution({"headers": {}}, "")
    assert comes_through_distribution({}, "")


def test_stack_and_function_share_the_headers_name() -> None:
    assert stack.ORIGIN_HEADER == ORIGIN_HEADER
