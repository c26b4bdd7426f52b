import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import Loader

from detcloud.shared.aws import new_session


def test_service_list_equals_botocores_list() -> None:
    ours = new_session().get_component("data_loader").list_available_services("service-2")
    assert ours == Loader().list_available_services("service-2")


def test_service_model_is_read_once() -> None:
    first, second = (new_session().create_client("sts", "us-east-1") for _ in range(2))
    assert first.meta.service_model.metadata is second.meta.service_model.metadata


def test_unknown_service_is_refused() -> None:
    with pytest.raises(UnknownServiceError, match="'nowhere'"):
        new_session().create_client("nowhere", "us-east-1")
