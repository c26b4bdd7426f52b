"""The missing features of an S3-compatible store, learned once for all requests of a bucket.

Stores with a part of the protocol refuse or ignore unknown headers. A refused request is sent again
without the optional fields. If the store then accepts the request, the store lacks the feature, and
no later request uses the feature. Amazon's own store has all features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from detcloud.shared.s3_errors import client_error, may_be_refusal

Send = Callable[..., Mapping[str, Any]]


class Feature(StrEnum):
    """An optional feature of a store."""

    CHECKSUMS = "checksums"
    """The newer checksums: CRCs and SHA-256 in separate headers."""
    CONDITIONS = "conditional writes"
    RANGES = "ranges"
    MATCHES = "conditional reads"
    UPLOAD_LISTS = "lists of uploads"


_FIELDS = {
    Feature.CHECKSUMS: ("ChecksumAlgorithm", "ChecksumCRC32", "ChecksumSHA256"),
    Feature.CONDITIONS: ("IfNoneMatch",),
    Feature.RANGES: ("Range",),
    Feature.MATCHES: ("IfMatch",),
}


class StoreFeatures:
    """The known features of a store. Several threads may share the object."""

    def __init__(self, *, is_amazons_own: bool) -> None:
        self.is_amazons_own = is_amazons_own
        self._lacking: set[Feature] = set()
        self._proved: set[Feature] = set()

    def lacks(self, feature: Feature) -> bool:
        """Whether the store is known to lack the feature. False if unknown."""
        return feature in self._lacking

    def is_proved(self, feature: Feature) -> bool:
        """Whether the store is known to have the feature. Always True for Amazon's store."""
        return self.is_amazons_own or feature in self._proved

    def is_known(self, feature: Feature) -> bool:
        """Whether an answer has shown that the store has, or lacks, the feature.

        Always True for Amazon's store.
        """
        return self.is_proved(feature) or self.lacks(feature)

    def note(self, feature: Feature, *, is_there: bool) -> None:
        """Record whether an answer showed the feature. A feature once missing stays missing.

        The record lasts as long as the object. `is_proved` and `lacks` may both be True afterwards.
        """
        (self._proved if is_there else self._lacking).add(feature)

    def send(self, request: Send, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request without the optional fields that the store refuses; return the answer.

        The fields of features that are known to be missing are never sent. If another store than
        Amazon's refuses the request as `may_be_refusal` says, repeat it without the fields of each
        used feature, and then without the fields of all. Record the features that had to be left
        out as missing. A success with all fields records nothing. If all attempts are refused,
        raise the error of the first. Raise any other error at once. Errors are botocore's. There is
        no pause between the attempts. `request` is a function of botocore, which itself repeats
        throttled, broken and unanswered requests; `fields` are its arguments.
        """
        sent = {
            name: value for name, value in fields.items() if not self._is_field_of_lacking(name)
        }
        used = [feature for feature, names in _FIELDS.items() if sent.keys() & {*names}]
        try:
            return request(**sent)
        except client_error() as error:
            if self.is_amazons_own or not used or not may_be_refusal(error):
                raise
            refused = error
        # Leave out each feature by itself, and then all features.
        for features in dict.fromkeys((*((one,) for one in used), tuple(used))):
            left_out = {name for feature in features for name in _FIELDS[feature]}
            try:
                answer = request(**{n: value for n, value in sent.items() if n not in left_out})
            except client_error() as error:
                if not may_be_refusal(error):
                    raise
                continue
            for feature in features:
                self.note(feature, is_there=False)
            return answer
        raise refused

    def _is_field_of_lacking(self, name: str) -> bool:
        return any(name in _FIELDS.get(feature, ()) for feature in self._lacking)
