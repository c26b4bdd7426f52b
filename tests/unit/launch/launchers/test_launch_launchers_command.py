import pytest

from detcloud import DetcloudError
from detcloud.launch.launchers.command import command_arguments


def test_only_a_string_command_runs_through_the_shell() -> None:
    assert command_arguments("echo $HOME") == ["sh", "-c", "echo $HOME"]
    assert command_arguments(["echo", "$HOME"]) == ["echo", "$HOME"]


@pytest.mark.parametrize("empty", ["", "  ", []])
def test_an_empty_entrypoint_is_refused(empty: str | list[str]) -> None:
    with pytest.raises(DetcloudError, match="runs nothing"):
        command_arguments(empty)
