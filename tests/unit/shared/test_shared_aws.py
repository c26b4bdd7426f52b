import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from detcloud.shared.aws import new_session


def test_the_services_are_those_that_botocore_finds_itself() -> None:
    ours = new_session().get_component("data_loader").list_available_services("service-2")
    assert ours == Loader().list_available_services("service-2")


def test_what_is_said_of_a_service_is_read_once() -> None:
    one, other = (new_session().create_client("sts", "us-east-1") for _ in range(2))
    assert one.meta.service_model.metadata is other.meta.service_model.metadata


def test_a_service_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownServiceError, match="'nowhere'"):
        new_session().create_client("nowhere", "us-east-1")
