"""The bucket with the objects of a cluster on own machines, in place of the folder `objects`.

The mark is an object in the bucket. The mark names the cluster whose objects the bucket contains,
so that two clusters never mix their objects.
"""

import configparser
import json
import os
import re
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from control_plane.objects.store import InvalidKey, ObjectKey
from control_plane.state.table import StateTable
from detcloud.shared.bucket_address import bucket_address, check_endpoint, parse_bucket_address
from detcloud.shared.bucket_errors import BucketError, NoSuchKey
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.masking import mask_urls
from detcloud.shared.s3 import Bucket
from local_cluster.cluster_id import load_or_create_cluster_id
from local_cluster.home import FILES_ID, HomeFolder, HomeInvalid

MARK = "files-id"
"""The key of the mark below the prefix. No object of a cluster has this key."""
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# A digest of no content, for a signed URL that nobody sends.
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_LOOPBACK = re.compile(r"127(\.[0-9]+){3}")


@dataclass(frozen=True)
class Mark:
    """The mark of a bucket."""

    id: str
    """The random id of the bucket's objects, which a state repeats."""
    cluster: str
    """The id of the cluster that the objects belong to."""


class ObjectBucket:
    """The bucket that a data folder names. All methods raise HomeInvalid if the store fails.

    Args:
        place: the bucket, with credentials or without.
    """

    def __init__(self, place: BucketPlace) -> None:
        self.place = place

    @cached_property
    def bucket(self) -> Bucket:
        """The requests on the bucket. Raises HomeInvalid without credentials or boto3."""
        try:
            return Bucket(self.place)
        except BucketError as error:
            raise _refusal(error) from None

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can reach the store, and therefore signed URLs."""
        host = urlsplit(self.place.endpoint_url or "").hostname or ""
        return host in ("localhost", "::1") or bool(_LOOPBACK.fullmatch(host))

    def read_mark(self) -> Mark | None:
        """Return the mark. Return None for a bucket that no cluster has used."""
        try:
            fields = json.loads(b"".join(self.bucket.read(MARK)))
            return Mark(str(fields["id"]), str(fields["cluster"]))
        except NoSuchKey:
            return None
        except BucketError as error:
            raise _refusal(error) from None
        except (ValueError, KeyError, TypeError):
            raise HomeInvalid(
                f"--files: the object {MARK} in {self.place} is no mark of detcloud; choose "
                "another prefix"
            ) from None

    def write_mark(self, mark: Mark, *, if_absent: bool = False) -> None:
        """Write or replace the mark. With `if_absent`, an existing mark stays."""
        body = json.dumps({"id": mark.id, "cluster": mark.cluster}).encode()
        try:
            self.bucket.write(MARK, (body,), if_absent=if_absent)
        except BucketError as error:
            raise _refusal(error) from None

    def remove_mark(self) -> None:
        """Delete the mark, so that servers which still name the bucket are refused."""
        try:
            self.bucket.delete(MARK)
        except BucketError as error:
            raise _refusal(error) from None

    def claim(self, cluster_id: str) -> str:
        """Let the bucket have the objects of a cluster; return the id of the mark.

        Write the mark, and check that agents can get signed URLs. Raises HomeInvalid if the store
        cannot be used, or if the objects belong to another cluster.
        """
        mark = self.read_mark()
        if mark is None:
            fresh = Mark(uuid.uuid4().hex, cluster_id)
            self.write_mark(fresh, if_absent=True)
            # Another server may have been faster.
            mark = self.read_mark() or fresh
        if mark.cluster != cluster_id:
            raise HomeInvalid(
                f"--files: {self.place} has the objects of the cluster {mark.cluster}, and the "
                f"state here is of the cluster {cluster_id}; choose another prefix"
            )
        # The permission to write may have been withdrawn since the last start.
        self.write_mark(mark)
        try:
            self.bucket.signed_put_url(MARK, 60, 0, _EMPTY_SHA256)
        except BucketError as error:
            raise HomeInvalid(
                f"--files: clients cannot upload model code to this store: {error}"
            ) from None
        return mark.id

    def has_objects(self, cluster_id: str) -> bool:
        """Return whether the bucket has an object of the cluster below the prefix.

        Objects below a mark of another cluster do not count.
        """
        mark = self.read_mark()
        if mark is not None and mark.cluster != cluster_id:
            return False
        try:
            return any("/" in key and _is_key(key) for key, _ in self.bucket.list_objects(""))
        except BucketError as error:
            raise _refusal(error) from None


def open_bucket(home: HomeFolder) -> ObjectBucket | None:
    """Return the bucket with the objects. Return None if the objects are in a folder.

    Nothing is sent to the store. Raises HomeInvalid for a damaged record, and for a file with
    credentials that cannot be used.
    """
    address, credentials = home.bucket
    return None if address is None else ObjectBucket(_read_place(address, credentials))


def choose_files(home: HomeFolder, choice: str | None, credentials: Path | None) -> None:
    """Let the objects of a stopped cluster be at another place.

    A chosen bucket is used at once: the mark is written, so that a wrong address or credential is
    never recorded.

    Args:
        home: the data folder. The caller holds the locks of the folder and of the state.
        choice: a folder, or the address of a bucket. None for the present place.
        credentials: the file with the credentials for the bucket. None for the environment's
            credentials, or for the present file of the present bucket.

    Raises:
        HomeInvalid: the bucket cannot be used or belongs to another cluster, or the present place
            has objects and the other place has none.
        TableError: the state table failed.
        OSError: a file cannot be read or written.
    """
    present = home.bucket[0]
    choice = present if choice is None and credentials is not None else choice
    is_bucket = choice is not None and "://" in choice
    if credentials is not None and not is_bucket:
        raise HomeInvalid("--files-credentials needs --files with the address of a bucket")
    if choice is None:
        return
    if not is_bucket and present is None:
        home.set_files(Path(choice))
        return
    with closing(home.state.open()) as table:
        cluster_id = load_or_create_cluster_id(table)
    if is_bucket:
        _choose_bucket(home, choice, None if credentials is None else str(credentials), cluster_id)
    else:
        _leave_bucket(home, Path(choice), cluster_id)


def claim_bucket(home: HomeFolder) -> None:
    """Check that the bucket with the objects can be used; do nothing without a bucket.

    Raises HomeInvalid if the bucket cannot be used or belongs to another cluster, and TableError.
    """
    bucket = open_bucket(home)
    if bucket is not None:
        with closing(home.state.open()) as table:
            bucket.claim(load_or_create_cluster_id(table))


def files_id(home: HomeFolder) -> str | None:
    """Return the id of the folder or bucket with the objects. Return None without an id.

    Raises HomeInvalid if the bucket cannot be read, and OSError.
    """
    bucket = open_bucket(home)
    if bucket is None:
        return home.files_id()
    mark = bucket.read_mark()
    return None if mark is None else mark.id


def load_or_create_files_id(home: HomeFolder, table: StateTable) -> str:
    """Return the id of the folder or bucket with the objects. Write a missing id.

    Raises HomeInvalid if the bucket cannot be used, TableError and OSError.
    """
    bucket = open_bucket(home)
    if bucket is None:
        return home.load_or_create_files_id()
    return bucket.claim(load_or_create_cluster_id(table))


def read_credentials(path: Path) -> tuple[str, str]:
    """Return the access key and the secret key in a file of AWS's form.

    The file has one section, or a section `default`. Raises HomeInvalid if other users can read the
    file, if a key is missing, or if the keys are temporary. No message shows a key.
    """
    keys = "aws_access_key_id and aws_secret_access_key"
    parser = configparser.RawConfigParser()
    try:
        if path.stat().st_mode & 0o077:
            raise HomeInvalid(
                f"--files-credentials: other users can read {path}; run `chmod 600 {path}`"
            )
        parser.read_string(path.read_text("utf-8"))
    except OSError as error:
        raise HomeInvalid(f"--files-credentials: {path} cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError):
        # Errors of the parser quote lines, which may contain a key.
        raise HomeInvalid(
            f"--files-credentials: {path} is not in the form of AWS's credentials files: a line "
            f"[default], then lines with {keys}"
        ) from None
    names = parser.sections()
    name = names[0] if len(names) == 1 else "default"
    section = dict(parser.items(name)) if parser.has_section(name) else {}
    access_key = section.get("aws_access_key_id", "").strip()
    secret_key = section.get("aws_secret_access_key", "").strip()
    if not access_key or not secret_key:
        raise HomeInvalid(f"--files-credentials: the section [{name}] of {path} needs {keys}")
    if "aws_session_token" in section:
        raise HomeInvalid(
            f"--files-credentials: the keys in {path} are temporary; write lasting keys into the "
            "file, or leave the option out to use the credentials of the environment"
        )
    return access_key, secret_key


def _choose_bucket(home: HomeFolder, choice: str, credentials: str | None, cluster_id: str) -> None:
    try:
        place = _complete_place(parse_bucket_address(choice))
    except ValueError as error:
        raise HomeInvalid(f"--files: {error}") from None
    address, known = home.bucket
    is_present = address == bucket_address(place)
    # Without the option, a later start keeps the file with the credentials.
    credentials = known if is_present and credentials is None else credentials
    address = bucket_address(place)
    wanted = ObjectBucket(_read_place(address, credentials))
    if not is_present:
        _move_id(home, cluster_id, wanted)
    wanted.claim(cluster_id)
    home.set_bucket(address, credentials)


def _leave_bucket(home: HomeFolder, folder: Path, cluster_id: str) -> None:
    """Let the objects be in a folder, and move the id of the bucket to the folder."""
    bucket = open_bucket(home)
    assert bucket is not None, "the data folder names a bucket"
    objects = folder.expanduser().absolute() / "objects"
    if not objects.is_dir() and bucket.has_objects(cluster_id):
        raise _copy_first(bucket.place, objects)
    home.set_files(folder)
    mark = bucket.read_mark()
    if mark is not None and mark.cluster == cluster_id:
        if home.files_id() is None:
            home.write_files_id(mark.id)
        bucket.remove_mark()
    home.set_bucket(None)


def _move_id(home: HomeFolder, cluster_id: str, wanted: ObjectBucket) -> None:
    """Move the id of the present folder or bucket to a bucket without a mark.

    Servers that still name the former place are refused from then on. Raises HomeInvalid if the
    present place has objects and the wanted bucket has none.
    """
    present = open_bucket(home)
    mark = wanted.read_mark()
    has_objects = home.has_objects() if present is None else present.has_objects(cluster_id)
    if has_objects and not wanted.has_objects(cluster_id):
        raise _copy_first(home.objects if present is None else present.place, wanted.place)
    if mark is not None:
        return
    if present is None:
        former_id = home.files_id()
    else:
        former = present.read_mark()
        former_id = former.id if former is not None and former.cluster == cluster_id else None
    if former_id is None:
        return
    wanted.write_mark(Mark(former_id, cluster_id))
    if present is None:
        (home.files / FILES_ID).unlink()
    else:
        present.remove_mark()


def _copy_first(source: object, target: object) -> HomeInvalid:
    return HomeInvalid(
        f"{source} has the objects of this cluster; copy the objects to {target} first, for "
        "example with `aws s3 sync`"
    )


def _complete_place(place: BucketPlace) -> BucketPlace:
    """Return the place. A place without an endpoint gets the endpoint of the environment."""
    if place.endpoint_url is not None:
        return place
    given = next(filter(None, map(os.environ.get, _ENDPOINT_VARIABLES)), None)
    if given is None:
        return place
    check_endpoint(given)
    return replace(place, endpoint_url=given)


def _read_place(address: str, credentials: str | None) -> BucketPlace:
    """Return the place of a recorded address, with the keys of the file. Raises HomeInvalid."""
    try:
        place = parse_bucket_address(address)
    except ValueError as error:
        raise HomeInvalid(f"the record files.json is damaged: {error}") from None
    if credentials is None:
        return place
    access_key, secret_key = read_credentials(Path(credentials))
    return replace(place, access_key=access_key, secret_key=secret_key)


def _is_key(text: str) -> bool:
    try:
        ObjectKey(text)
    except InvalidKey:
        return False
    return True


def _refusal(error: BucketError) -> HomeInvalid:
    return HomeInvalid(f"--files: {mask_urls(str(error))}")
