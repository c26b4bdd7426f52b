"""The credential of an agent's machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from detcloud.agent.credential import FORMER_MAX, REPLACED_AFTER_MS, Credential


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def open_credential(folder: Path, now_ms: int = 0) -> Credential:
    return Credential(folder / "credential.json", folder / "join.token", lambda: now_ms)


def test_new_token_is_stored_before_it_is_sent(tmp_path: Path) -> None:
    credential = open_credential(tmp_path)
    digest = credential.prepare()
    [token] = open_credential(tmp_path).tokens()
    assert digest == digest_of(token)
    assert not credential.is_usable
    # A repetition after a lost answer names the same token.
    assert open_credential(tmp_path).prepare() == digest
    assert (tmp_path / "credential.json").stat().st_mode & 0o777 == 0o600


def test_accepted_credential_deletes_the_join_token(tmp_path: Path) -> None:
    (tmp_path / "join.token").write_text("dct_x")
    credential = open_credential(tmp_path)
    digest = credential.prepare()
    credential.confirm()
    assert not (tmp_path / "join.token").exists()
    again = open_credential(tmp_path)
    assert again.is_usable
    assert again.prepare() == digest


def test_token_is_replaced_after_a_week(tmp_path: Path) -> None:
    credential = open_credential(tmp_path)
    first = credential.prepare()
    credential.confirm()
    later = open_credential(tmp_path, REPLACED_AFTER_MS)
    second = later.prepare()
    assert second != first
    present, following = later.tokens()
    assert (digest_of(present), digest_of(following)) == (first, second)
    later.confirm()
    # A restored cluster knows only the former token.
    assert [digest_of(token) for token in later.tokens()] == [second, first]


def test_only_a_year_of_former_tokens_is_kept(tmp_path: Path) -> None:
    for week in range(FORMER_MAX + 5):
        credential = open_credential(tmp_path, week * REPLACED_AFTER_MS)
        credential.prepare()
        credential.confirm()
    assert len(credential.tokens()) == FORMER_MAX + 1


def test_revoked_credential_is_never_proposed_again(tmp_path: Path) -> None:
    credential = open_credential(tmp_path)
    first = credential.prepare()
    credential.confirm()
    credential.forget_present()
    assert not credential.is_usable
    assert credential.prepare() != first


@pytest.mark.parametrize("content", ["", "[]", '{"current": 1', json.dumps({"former": 7})])
def test_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "credential.json").write_text(content)
    assert open_credential(tmp_path).tokens() == []
