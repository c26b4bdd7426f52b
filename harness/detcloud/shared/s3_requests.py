"""The requests of a client to a bucket of Amazon S3 or of an S3-compatible store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3_errors import FOREIGN, client_error, http_status, translate_errors
from detcloud.shared.s3_features import StoreFeatures


class S3Requests:
    """The requests to a bucket by a botocore client. Several threads may share the object.

    `client` repeats throttled, broken and unanswered requests up to ATTEMPTS_MAX attempts, with
    growing pauses. `send` and `pages` raise botocore's errors, the other methods bucket errors as
    `s3_errors.translate_errors` does.
    """

    def __init__(self, place: BucketPlace, client: Any, features: StoreFeatures) -> None:
        self.place = place
        self.client = client
        self.features = features
        self._key_prefix = place.key_prefix

    def request(self, name: str, key: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request as `send` does, and translate botocore's errors into bucket errors.

        Raise NoSuchKey if the request needs an object and nothing is stored under the key.
        """
        with self.translate_errors(key):
            return self.send(name, key, arguments)

    def head(self, key: str) -> Mapping[str, Any] | None:
        """Return the answer with the object's properties. Return None for status 404.

        None therefore means no object or no bucket. Each call sends a request.
        """
        with self.translate_errors(key):
            try:
                return self.send("head_object", key, {})
            except client_error() as error:
                if http_status(error) == 404:
                    return None
                raise

    def send(self, name: str, key: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the key, and return the answer. Raise botocore's errors.

        `name` is botocore's method, such as `put_object`; `fields` are its other arguments.
        Optional fields that the store lacks or refuses are left out, as `StoreFeatures.send` does.
        """
        request = getattr(self.client, name)
        return self.features.send(request, {**fields, **self.arguments(key)})

    def field(self, key: str, answer: Mapping[str, Any], name: str) -> Any:
        """Return a field of an answer. Raise BucketError if the field is missing or None."""
        if answer.get(name) is None:
            raise BucketError(
                f"{key!r:.200} in {self.place}: the store's answer has no {name}, which {FOREIGN}"
            )
        return answer[name]

    def pages(self, operation: str, prefix: str) -> Iterable[Mapping[str, Any]]:
        """Return the pages of a list of keys with the prefix. Each is requested when it is reached.

        `operation` is botocore's name of the list, such as `list_objects_v2`. The keys in a page
        are those of the bucket, with the prefix of the place. The iteration raises botocore's
        errors.
        """
        pages: Iterable[Mapping[str, Any]] = self.client.get_paginator(operation).paginate(
            Bucket=self.place.name, Prefix=self._key_prefix + prefix
        )
        return pages

    def arguments(self, key: str) -> dict[str, str]:
        """Return botocore's arguments `Bucket` and `Key` for a key, with the place's prefix."""
        return {"Bucket": self.place.name, "Key": self._key_prefix + key}

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Return a context that translates errors as `s3_errors.translate_errors` does."""
        return translate_errors(self.place, key)
