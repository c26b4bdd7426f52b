"""The contract of cloud providers: rules that every provider must keep."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from control_plane.fleet.records import IntentRow
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    INTENT_TAG,
    POOL_TAG,
    CloudInstance,
    CloudProvider,
    TokenReused,
)
from provisioner.model import InstanceStatus

Wait = Callable[[Callable[[], bool]], None]

CLUSTER, POOL = "c1", "blue"
ENDED = (InstanceStatus.TERMINATED, None)


class CloudProviderContract:
    """The tests for every cloud provider."""

    @pytest.fixture
    def cloud(self) -> CloudProvider:
        raise AssertionError("a suite must define its provider")

    @pytest.fixture
    def reopen(self) -> Callable[[], CloudProvider]:
        raise AssertionError("a suite must define how to open its cloud again")

    @pytest.fixture
    def wait(self) -> Wait:
        raise AssertionError("a suite must define its time")

    def test_offerings_have_unique_names(self, cloud: CloudProvider) -> None:
        names = [offering.name for offering in cloud.offerings()]
        assert names
        assert len(set(names)) == len(names)

    def test_launch_returns_at_most_the_requested_count(self, cloud: CloudProvider) -> None:
        instances = cloud.launch(request(cloud, "one", count=2))
        assert 1 <= len(instances) <= 2
        assert len({instance.id for instance in instances}) == len(instances)

    def test_instance_is_listed_with_the_launch_tags(
        self, cloud: CloudProvider, wait: Wait
    ) -> None:
        (launched,) = cloud.launch(request(cloud, "one"))
        wait(lambda: status(cloud, launched.id) is InstanceStatus.RUNNING)
        (listed,) = cloud.list_instances(CLUSTER, POOL)
        assert listed.id == launched.id
        assert dict(listed.tags) | {CLUSTER_TAG: CLUSTER, POOL_TAG: POOL, INTENT_TAG: "one"} == (
            dict(listed.tags)
        )

    def test_instance_id_is_a_valid_agent_name(self, cloud: CloudProvider) -> None:
        (launched,) = cloud.launch(request(cloud, "one"))
        assert launched.id.replace("-", "").isalnum()
        assert len(launched.id) <= 63

    def test_repeated_request_launches_once(self, cloud: CloudProvider, wait: Wait) -> None:
        first = cloud.launch(request(cloud, "one", count=2))
        second = cloud.launch(request(cloud, "one", count=2))
        assert ids(first) == ids(second)
        wait(lambda: ids(cloud.list_instances(CLUSTER)) == ids(first))

    def test_second_process_repeats_a_launch_without_new_instances(
        self, cloud: CloudProvider, reopen: Callable[[], CloudProvider]
    ) -> None:
        first = cloud.launch(request(cloud, "one"))
        assert ids(reopen().launch(request(cloud, "one"))) == ids(first)

    def test_launch_token_is_valid_for_a_single_request(self, cloud: CloudProvider) -> None:
        cloud.launch(request(cloud, "one"))
        with pytest.raises(TokenReused):
            cloud.launch(replace(request(cloud, "one"), count=2))
        with pytest.raises(TokenReused):
            cloud.launch(replace(request(cloud, "one"), section='{"a": 1}'))

    def test_different_tokens_launch_different_instances(self, cloud: CloudProvider) -> None:
        first = cloud.launch(request(cloud, "one"))
        second = cloud.launch(request(cloud, "two"))
        assert not set(ids(first)) & set(ids(second))

    def test_lists_instances_of_a_cluster_or_of_a_pool(
        self, cloud: CloudProvider, wait: Wait
    ) -> None:
        blue = cloud.launch(request(cloud, "one"))
        green = cloud.launch(replace(request(cloud, "two"), pool="green"))
        cloud.launch(replace(request(cloud, "three"), cluster="another"))
        wait(lambda: len(cloud.list_instances(CLUSTER)) == 2)
        wait(lambda: len(cloud.list_instances("another")) == 1)
        assert ids(cloud.list_instances(CLUSTER, POOL)) == ids(blue)
        assert ids(cloud.list_instances(CLUSTER)) == sorted([*ids(blue), *ids(green)])

    def test_terminated_instance_ends(self, cloud: CloudProvider, wait: Wait) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        (two,) = cloud.launch(request(cloud, "two"))
        wait(lambda: status(cloud, one.id) is InstanceStatus.RUNNING)
        cloud.terminate([one.id])
        wait(lambda: status(cloud, one.id) in ENDED)
        wait(lambda: status(cloud, two.id) is InstanceStatus.RUNNING)

    def test_repeated_termination_is_harmless(self, cloud: CloudProvider, wait: Wait) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        wait(lambda: status(cloud, one.id) is not None)
        cloud.terminate([one.id])
        cloud.terminate([one.id, one.id])
        wait(lambda: status(cloud, one.id) in ENDED)
        cloud.terminate([one.id])
        wait(lambda: status(cloud, one.id) in ENDED)

    def test_termination_of_an_unknown_instance_is_no_error(
        self, cloud: CloudProvider, wait: Wait
    ) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        wait(lambda: status(cloud, one.id) is not None)
        cloud.terminate(["i-0123456789abcdef0", one.id])
        wait(lambda: status(cloud, one.id) in ENDED)

    def test_launch_repeated_after_the_end_launches_no_instance(
        self, cloud: CloudProvider, wait: Wait
    ) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        wait(lambda: status(cloud, one.id) is not None)
        cloud.terminate([one.id])
        wait(lambda: status(cloud, one.id) in ENDED)
        assert ids(cloud.launch(request(cloud, "one"))) == [one.id]
        wait(lambda: status(cloud, one.id) in ENDED)

    def test_boot_log_of_an_unknown_instance_is_empty(
        self, cloud: CloudProvider, wait: Wait
    ) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        wait(lambda: status(cloud, one.id) is not None)
        assert isinstance(cloud.boot_log(one.id), str)
        assert cloud.boot_log("i-0123456789abcdef0") == ""

    def test_instances_outlive_the_launching_process(
        self, cloud: CloudProvider, reopen: Callable[[], CloudProvider], wait: Wait
    ) -> None:
        (one,) = cloud.launch(request(cloud, "one"))
        other = reopen()
        wait(lambda: status(other, one.id) is InstanceStatus.RUNNING)
        other.terminate([one.id])
        wait(lambda: status(other, one.id) in ENDED)


def request(cloud: CloudProvider, name: str, *, count: int = 1) -> IntentRow:
    """Return a launch of the first offering with a token derived from `name`."""
    token = f"{sum(map(ord, name)):040d}"[::-1]
    return IntentRow(name, CLUSTER, POOL, cloud.offerings()[0], count, token, 1_000, "{}")


def status(cloud: CloudProvider, name: str) -> InstanceStatus | None:
    """Return the listed status of an instance, or None for an unlisted instance."""
    return next(
        (instance.status for instance in cloud.list_instances(CLUSTER) if instance.id == name), None
    )


def ids(found: "tuple[CloudInstance, ...] | object") -> list[str]:
    assert isinstance(found, tuple | list)
    return sorted(instance.id for instance in found)
