"""The versions of deleted checkpoints in a stack on AWS."""

import json

from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import Graph


def test_only_the_bucket_of_checkpoints_keeps_versions(vision: Graph, front_stack: Graph) -> None:
    assert vision.inputs_of("BucketVersioning") == {
        "checkpoints": {
            "bucket": "Bucket.checkpoints.id",
            "versioningConfiguration": {"status": "Enabled"},
        }
    }
    # The settings of this stack have `deletedCheckpointDays: 0`.
    assert front_stack.inputs_of("BucketVersioning") == {}


def test_only_the_collector_may_delete_versions(
    vision: Graph, bank: Graph, front_stack: Graph
) -> None:
    # The settings of `bank` have `purgeCheckpoints: false`.
    for stack, may_purge in ((vision, True), (bank, False), (front_stack, False)):
        for name, role in stack.inputs_of("RolePolicy").items():
            is_purger = name == "checkpoint_gc" and may_purge
            assert ("s3:DeleteObjectVersion" in role["policy"]) is is_purger, name
        for name, function in stack.inputs_of("Function").items():
            variables = function["environment"]["variables"]
            is_purger = name == "checkpoint_gc" and may_purge
            assert ("DETCLOUD_PURGE_VERSIONS" in variables) is is_purger, name
    policy = json.loads(vision.inputs_of("RolePolicy")["checkpoint_gc"]["policy"])
    bucket = "arn:aws:s3:::detcloud-vision-checkpoints-111111111111"
    assert allows(policy, "s3:DeleteObjectVersion", f"{bucket}/1/2/3/uuid/weights")
    assert allows(policy, "s3:ListBucketVersions", bucket)
    objects = "arn:aws:s3:::detcloud-vision-objects-111111111111/logs/1"
    assert not allows(policy, "s3:DeleteObjectVersion", objects)
