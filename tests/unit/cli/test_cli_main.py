"""The command line as a process: version, help, usage errors, no tracebacks."""

import importlib
import os
import pkgutil
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import detcloud as package
from detcloud.cli import commands
from detcloud.cli.commands import experiment
from detcloud.cli.framework.command_examples import EXAMPLES, example_of
from detcloud.cli.framework.command_index import COMMANDS, commands_by_verb, flat_commands
from detcloud.cli.framework.command_parser import Handler, load_command
from detcloud.cli.framework.nouns import NOUN_ALIASES, NOUNS
from detcloud.cli.framework.overview import VERB_GROUPS
from detcloud.cli.main import main
from detcloud.cli.rendering.output import add_output_options
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.parser_actions import actions_of
from tests.unit.client.fake_cluster import FakeCluster


def shell(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **extra, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "detcloud.cli.main", *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=PROCESS_SECONDS_MAX,
    )


def test_the_version_is_printed() -> None:
    done = shell("--version")
    assert (done.returncode, done.stdout) == (0, f"detcloud {package.__version__}\n")


def test_help_names_every_flat_command_and_noun() -> None:
    done = shell("--help")
    assert done.returncode == 0
    for word in [*(command.flat[0] for command in COMMANDS if command.flat), *NOUNS]:
        assert f"\n  {word} " in done.stdout
    assert shell().stdout == done.stdout


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from detcloud.cli.main import main; main(['--version']); main(['--help']);"
        "print([name for name in ('argparse', 'dataclasses', 'json', 'tarfile', 'http.client', "
        "'pathspec', 'torch', 'asyncio') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["creat"], "`detcloud creat` is not a known command", "did you mean `detcloud create`?"),
        (["e", "lits"], "`detcloud experiment lits` is no", "mean `detcloud experiment list`?"),
        (["zzz"], "`detcloud zzz` is not a known command", "see `detcloud --help`"),
        (["--verbos"], "--verbos is not a known option", "see `detcloud --help`"),
        (["--url"], "--url needs an address", "for example --url"),
        (["create"], "arguments are required: CONFIG", "see `detcloud create --help`"),
        (["pause", "x"], "'x' is not an id; expected a whole number", "`detcloud pause --help`"),
        (["pause", "0"], "'0' is not an id; expected a whole number", "`detcloud pause --help`"),
        (
            ["describe", "9" * 13],
            "is not an id; expected a whole number",
            "`detcloud describe --help`",
        ),
        (["logs", "1", "--tail", "-1"], "'-1' is not a count; expected", "`detcloud logs --help`"),
        (
            ["c", "describe", ""],
            "'' is not a UUID or the beginning of one",
            "`detcloud c describe --help`",
        ),
        (["c", "download", "../x"], "'../x' is not a UUID", "`detcloud c download --help`"),
        (["up", "--slots", "0"], "not a number of slots; expected 1 to", "`detcloud up --help`"),
        (
            ["--url", "http://x", "down"],
            "does not accept --url: the command uses this machine",
            "down --help",
        ),
        (["down", "--url", "http://x"], "unrecognized arguments: --url", "`detcloud down --help`"),
        (["wait", "1", "--polling-interval", "0"], "not a duration", "`detcloud wait --help`"),
        (["up", "--port", "70000"], "not a port; expected 1 to 65535", "`detcloud up --help`"),
        (["list", "--json", "--csv"], "not allowed with", "`detcloud list --help`"),
    ],
)
def test_usage_error_prints_an_error_and_a_hint(
    words: list[str], message: str, hint: str, detcloud: Detcloud
) -> None:
    code, out, err = detcloud(*words)
    first, second = err.splitlines()
    assert (code, out) == (2, "")
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


def test_failures_are_a_line_without_a_traceback() -> None:
    done = shell("list", DETCLOUD_URL="ftp://x", DETCLOUD_TOKEN="t")
    assert done.returncode == 1
    assert done.stderr.startswith("error: 'ftp://x' is not an address")
    assert "Traceback" not in done.stderr
    debug = shell("list", DETCLOUD_URL="ftp://x", DETCLOUD_TOKEN="t", DETCLOUD_DEBUG="1")
    assert "Traceback" in debug.stderr


def test_internal_errors_are_a_single_line(
    monkeypatch: pytest.MonkeyPatch, detcloud: Detcloud
) -> None:
    def fail(arguments: object) -> int:
        raise KeyError("missing")

    monkeypatch.setitem(experiment.HANDLERS, "experiment list", Handler(add_output_options, fail))
    code, _, err = detcloud("list")
    assert code == 1
    assert err.splitlines()[0] == "error: internal: KeyError: 'missing'"


def test_a_closed_pipe_is_no_error(fake: FakeCluster) -> None:
    for _ in range(2000):
        fake.add_experiment({"name": "x" * 50}, {})
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "detcloud.cli.main", "list", "--all"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_index_and_modules_have_identical_commands() -> None:
    indexed = {(command.module, command.name) for command in COMMANDS}
    assert len(indexed) == len(COMMANDS)
    registered = set()
    for info in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"detcloud.cli.commands.{info.name}")
        for name, handler in getattr(module, "HANDLERS", {}).items():
            registered.add((info.name, name))
            assert callable(handler.add_arguments), name
            assert callable(handler.run), name
    assert indexed == registered


def test_words_are_unique() -> None:
    flat = [word for command in COMMANDS for word in command.flat]
    assert len(flat) == len(set(flat)) == len(flat_commands())
    assert not set(flat) & {*NOUNS, *NOUN_ALIASES}
    for noun in NOUNS:
        own = [command for command in COMMANDS if command.noun == noun]
        assert len(commands_by_verb(noun)) == sum(1 + len(command.verb_aliases) for command in own)


@pytest.mark.parametrize("noun", NOUNS)
def test_help_of_a_noun_lists_its_commands(noun: str, detcloud: Detcloud) -> None:
    helped = detcloud(noun, "--help")
    assert helped.code == 0
    assert all(f"  {command.verb}" in helped.out for command in COMMANDS if command.noun == noun)
    assert detcloud(noun).code == 2


def test_groups_of_verbs_contain_each_command_once() -> None:
    for noun, groups in VERB_GROUPS.items():
        grouped = [verb for verbs in groups.values() for verb in verbs]
        assert sorted(grouped) == sorted(
            command.verb for command in COMMANDS if command.noun == noun
        )


def test_each_command_has_an_example_that_its_parser_accepts() -> None:
    assert EXAMPLES.keys() == {command.name for command in COMMANDS}
    for command in COMMANDS:
        typed = command.flat[0] if command.flat else command.name
        words = shlex.split(example_of(command).partition(" > ")[0])
        name = typed.split(" ")
        assert words[: len(name) + 1] == ["detcloud", *name]
        parser, _ = load_command(command, typed)
        parser.parse_command(words[len(name) + 1 :])
        assert f"example: detcloud {typed}" in " ".join(parser.format_help().split())


def test_flat_form_noun_form_and_alias_are_equal(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "one"}, {"paused": True})
    forms = [("list",), ("ls",), ("experiment", "list"), ("experiment", "ls"), ("e", "ls")]
    outputs = {detcloud(*words).out for words in forms}
    assert len(outputs) == 1
    assert "one" in outputs.pop()


def test_the_url_may_stand_before_or_after_the_command(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_URL", "http://127.0.0.1:1")
    assert detcloud("--url", fake.url, "list").code == 0
    assert detcloud(f"--url={fake.url}", "list").code == 0
    assert detcloud("list", "--url", fake.url).code == 0


def test_error_without_a_cluster_names_the_next_step(detcloud: Detcloud) -> None:
    code, _, err = detcloud("list")
    assert code == 4
    assert err.startswith("error: no cluster is configured and none runs here; start one with")


def test_ctrl_c_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    handler = Handler(add_output_options, interrupt)
    monkeypatch.setitem(experiment.HANDLERS, "experiment list", handler)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_all_options_have_help() -> None:
    for command in COMMANDS:
        parser, _ = load_command(command, command.name)
        for action in actions_of(parser):
            assert action.help, (parser.prog, action.dest)


def test_malformed_url_is_reported_before_a_missing_token(detcloud: Detcloud) -> None:
    assert detcloud("--url", "x", "list").err == (
        "error: 'x' is not an address; expected http://HOST:PORT or https://HOST\n"
    )
