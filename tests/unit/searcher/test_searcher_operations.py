"""Operations of search methods as data for the API."""

from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch

from detcloud import DetcloudError, searcher

ID = UUID("0000000a-0000-4000-8000-00000000000b")
SEVERAL = [np.array([1, 2]), torch.tensor([1, 2])]


def test_scalars_of_numpy_and_torch_become_json_values() -> None:
    hparams = {"x": np.float32(0.5), "y": torch.tensor(2)}
    assert searcher.Create(ID, hparams).fields()["hparams"] == {"x": 0.5, "y": 2}
    length: Any = torch.tensor(7)
    assert searcher.ValidateAfter(ID, length).fields()["length"] == 7


@pytest.mark.parametrize("several", SEVERAL, ids=["numpy", "torch"])
def test_hparam_with_several_elements_is_refused(several: Any) -> None:
    with pytest.raises(DetcloudError, match=f"the hparams of {ID} cannot be sent: .* no scalar"):
        searcher.Create(ID, {"x": several}).fields()


@pytest.mark.parametrize("several", SEVERAL, ids=["numpy", "torch"])
def test_length_with_several_elements_is_refused(several: Any) -> None:
    with pytest.raises(DetcloudError, match=r"ValidateAfter got the length .*expected an integer"):
        searcher.ValidateAfter(ID, several).fields()


@pytest.mark.parametrize("progress", [None, "half", torch.tensor([1.0, 2.0])])
def test_progress_that_is_no_number_is_refused(progress: Any) -> None:
    with pytest.raises(DetcloudError, match="expected a number in"):
        searcher.Progress(progress).fields()


@pytest.mark.parametrize(
    ("progress", "sent"), [(-1, 0.0), (0.25, 0.25), (2, 1.0), (float("nan"), 0.0)]
)
def test_progress_is_limited(progress: float, sent: float) -> None:
    assert searcher.Progress(progress).fields()["progress"] == sent
