"""Access to the API where a distribution stands in front of it."""

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
def test_only_the_distribution_knows_the_secret(headers: dict[str, str], is_taken: bool) -> None:
    assert comes_through_distribution({"headers": headers}, DIGEST) is is_taken


def test_without_a_distribution_everybody_calls_the_gateway() -> None:
    assert comes_through_distribution({"headers": {}}, "")
    assert comes_through_distribution({}, "")


def test_both_sides_have_one_name_for_the_header() -> None:
    assert stack.ORIGIN_HEADER == ORIGIN_HEADER
