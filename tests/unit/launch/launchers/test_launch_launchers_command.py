import pytest

from detcloud import DetcloudError
from detcloud.launch.launchers.command import command_arguments


def test_a_string_goes_through_the_shell_and_a_list_does_not() -> None:
    assert command_arguments("echo $HOME") == ["sh", "-c", "echo $HOME"]
    assert command_arguments(["echo", "$HOME"]) == ["echo", "$HOME"]


@pytest.mark.parametrize("empty", ["", "  ", []])
def test_an_entrypoint_that_runs_nothing_is_refused(empty: str | list[str]) -> None:
    with pytest.raises(DetcloudError, match="runs nothing"):
        command_arguments(empty)
