import json
from pathlib import Path

from tests.unit.pytorch.module_runs import run_module


def test_gradients_are_averaged_for_all_uses_of_the_model(tmp_path: Path) -> None:
    printed = run_module("gradient_gang", tmp_path)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    # The gradient of w * x is x: 1 on rank 0 and 2 on rank 1, so 1.5 on average, and 3 * 1.5 for
    # the two calls with x and 2 * x.
    assert first == {
        "call_whole": {"gradients": [1.5, 1.5], "at_step": False},
        "call_method": {"gradients": [1.5, 1.5], "at_step": True},
        "call_part": {"gradients": [None, 1.5], "at_step": True},
        "leave_part_out": {"gradients": [None, 1.5], "at_step": True},
        "pass_back_twice": {"gradients": [4.5, 4.5], "at_step": True},
    }
    # The chief prints a line per model.
    assert printed.count("are averaged before each step instead") == 4
    refusal = (tmp_path / "refused-1").read_text()
    assert "model Pair: a backward pass does not reach all of its parameters on rank 1" in refusal
    assert not (tmp_path / "refused-0").exists()
