import builtins
from typing import Any

import pytest

from detcloud.storage import StorageError, build_store

KEYS = {"type": "s3", "bucket": "b", "access_key": "a", "secret_key": "of ours"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "tape"}, "storage type 'tape' is unknown"),
        ({}, "storage type None is unknown"),
        ({"type": "directory"}, "storage path is None: an absolute path was expected"),
        ({"type": "shared_fs", "path": "here"}, "storage path is 'here'"),
        ({"type": "s3"}, "storage bucket is None: a name is needed"),
        ({"type": "s3", "bucket": "b", "access_key": "a"}, "belong together"),
        ({**KEYS, "endpoint_url": "nowhere"}, "Invalid endpoint: nowhere"),
    ],
)
def test_a_store_that_cannot_be_built_says_why(config: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        build_store(config)


def test_without_boto3_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name.partition(".")[0] in ("boto3", "botocore"):
            raise ModuleNotFoundError(name)
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StorageError, match=r"pip install 'detcloud\[aws\]'"):
        build_store({"type": "s3", "bucket": "b"})
