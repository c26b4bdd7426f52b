"""The exchange of keys before SSH: valid keys only, no byte of SSH is consumed."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.ssh_greeting import (
    LINE_BYTES_MAX,
    NOTICES_MAX,
    GreetingFailed,
    encode_error,
    encode_host_key,
    encode_notice,
    encode_request,
    public_key_of,
    read_answer,
    read_request,
)

KEY = f"ssh-ed25519 {'A' * 68}"


def test_keys_are_exchanged_without_the_bytes_of_ssh() -> None:
    stream = io.BytesIO(encode_request(KEY) + b"SSH-2.0-client\r\n")
    assert read_request(stream.read) == KEY
    assert stream.read() == b"SSH-2.0-client\r\n"
    answer = io.BytesIO(encode_notice("wait") + encode_host_key(KEY) + b"SSH-2.0-server\r\n")
    notices: list[str] = []
    assert read_answer(answer.read, notices.append) == KEY
    assert (notices, answer.read()) == (["wait"], b"SSH-2.0-server\r\n")


def test_error_of_the_other_end_is_raised() -> None:
    stream = io.BytesIO(encode_error("no pip"))
    with pytest.raises(GreetingFailed, match="no pip"):
        read_answer(stream.read, print)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"SSH-2.0-server\r\n",
        b"[]\n",
        b"{}\n",
        b'{"host_key": "ssh-rsa AAAA"}\n',
        b'{"host_key": null}\n',
        b'{"host_key": "' + KEY.encode() + b"\\nother " + KEY.encode() + b'"',
        b"{" + b" " * LINE_BYTES_MAX + b"}\n",
        b"[" * LINE_BYTES_MAX + b"\n",
        encode_notice("again") * (NOTICES_MAX + 1),
    ],
)
def test_other_lines_are_no_key(line: bytes) -> None:
    with pytest.raises(GreetingFailed):
        read_answer(io.BytesIO(line).read, lambda text: None)


def test_comment_of_a_key_is_dropped() -> None:
    assert public_key_of(f"{KEY} ada@laptop\n") == KEY
    for text in ("", "ssh-ed25519", f"{KEY}A", f"no {KEY}", KEY.replace("ed25519", "rsa")):
        with pytest.raises(ValueError, match="Ed25519"):
            public_key_of(text)


@given(noise=st.binary(max_size=200))
def test_noise_raises_greeting_failed_only(noise: bytes) -> None:
    with pytest.raises(GreetingFailed):
        read_request(io.BytesIO(noise).read)
