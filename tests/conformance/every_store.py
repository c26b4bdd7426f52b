"""Every kind of checkpoint store that runs on this machine, for tests of common behaviour."""

from pathlib import Path

import pytest

from tests.conformance.checkpoint_files import hdfs_storage
from tests.emulators.webhdfs import OWNER

FOLDERS = ("directory", "shared_fs")
STORES = (*FOLDERS, "s3", "gcs", "azure", "hdfs")


def new_storage(kind: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """Return the `storage` of a trial's specification for a new, empty store of the type `kind`.

    `request` resolves the fixtures of the emulators, including `model_hdfs`.
    """
    match kind:
        case "s3":
            place = request.getfixturevalue("s3").place()
            fields = {
                "bucket": place.name,
                "prefix": "of/a team",
                "endpoint_url": place.endpoint_url,
                "access_key": place.access_key,
                "secret_key": place.secret_key,
            }
            return {"type": kind, **{name: str(value) for name, value in fields.items()}}
        case "gcs":
            bucket = request.getfixturevalue("resumable_gcs").new_bucket()
            return {"type": kind, "bucket": bucket, "prefix": "of/a team"}
        case "azure":
            storage: dict[str, str] = request.getfixturevalue("azure").storage()
            return storage
        case "hdfs":
            return hdfs_storage(request.getfixturevalue("model_hdfs").url, OWNER)
    assert kind in FOLDERS
    return {"type": kind, "path": str(folder / "store")}
