"""The log of a boot is shown without secrets and control characters, and of limited length."""

import pytest

from detcloud.shared.boot_log import BOOT_LOG_CHARACTERS_MAX, clean_boot_log

KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("export WANDB_API_KEY=abc123", "export WANDB_API_KEY=********"),
        ('{"password": "a b", "user": "x"}', '{"password": ********, "user": "x"}'),
        ("curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: ********"),
        ("tool --auth-token s3cr3t --quiet", "tool --auth-token ******** --quiet"),
        ("git clone https://bob:pw@example.com/x", "git clone https://********@example.com/x"),
        (f"key {KEY} id AKIAIOSFODNN7EXAMPLE", "key ******** id ********"),
        ("with dct_abcdefghijk it joins", "with ******** it joins"),
        ("hf_abcdefghij ghp_abcdefghij", "******** ********"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc",
            "-----BEGIN RSA PRIVATE KEY-----********",
        ),
        # Lines without a secret are unchanged, including a digest of 64 digits.
        (f"sha256 {'0a' * 32} of /opt/x", f"sha256 {'0a' * 32} of /opt/x"),
        ("E: Unable to locate package docker.io", "E: Unable to locate package docker.io"),
    ],
)
def test_secrets_in_a_boot_log_are_masked(line: str, shown: str) -> None:
    assert clean_boot_log(line) == shown


def test_boot_log_keeps_the_end_without_cut_secrets() -> None:
    text = "first\n" + "password=" + "x" * 10_000 + "\n" + "last\n" * 1000
    cleaned = clean_boot_log(text)
    assert len(cleaned) <= BOOT_LOG_CHARACTERS_MAX
    assert "xx" not in cleaned
    assert cleaned.endswith("last")


def test_boot_log_drops_control_sequences() -> None:
    assert clean_boot_log("\x1b[31mred\x1b[0m\r\n\x07bell\x00\r\n") == "red\nbell"
