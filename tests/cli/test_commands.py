"""The list of commands: what it says is what the commands say, and it costs no import of theirs."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys

import pytest
import typer

from elasticscan.cli.app import app
from elasticscan.cli.commands import BY_NAME, COMMANDS, INSTEAD, MORE_TOLD, OPTIONS_TOLD, Command
from tests.cli.conftest import Shell


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_list_says_what_the_command_says(command: Command) -> None:
    target = command.target()
    said = target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)
    first = " ".join(said.partition("\n\n")[0].split())
    assert command.help == (f"The same as {target_name(command)}." if command.is_alias else first)


def target_name(alias: Command) -> str:
    return next(c.name for c in COMMANDS if c.place == alias.place and not c.is_alias)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_examples_of_the_help_are_calls(command: Command) -> None:
    loaded, calls = command.load(), command.examples().split("\n\n")[1:]
    assert calls
    assert loaded.epilog == command.examples()
    for call in calls:
        words = shlex.split(call.removesuffix(" > trips.csv"))
        assert words[:2] == ["elasticscan", command.name]
        context = loaded.make_context(command.name, words[2:])
        if isinstance(command.target(), typer.Typer):
            name, inner, rest = loaded.resolve_command(context, words[2:])
            inner.make_context(name, rest, parent=context)


def test_names_of_others_are_understood_and_not_listed(shell: Shell, uri: str) -> None:
    listed = shell.ok("--help")
    assert " gc " in listed
    assert "vacuum" not in listed
    for name, other in (("gc", "vacuum"), ("compact", "optimize"), ("history", "log")):
        assert f"Also called {other}." in shell.ok(name, "--help")
    assert shell.json("log", uri, "t") == shell.json("history", uri, "t")
    assert shell.json("vacuum", uri, "--dry-run") == shell.json("gc", uri, "--dry-run")
    assert shell.json("optimize", uri, "t").keys() == shell.json("compact", uri, "t").keys()


@pytest.mark.parametrize("typed", sorted(INSTEAD))
def test_a_command_of_other_systems_is_reported_with_the_one_there_is(typed: str) -> None:
    assert typed not in BY_NAME
    name, *words = INSTEAD[typed].split()
    assert name == "--help" or name == "--version" or name in BY_NAME
    options = {word for word in words if word.startswith("--")}
    assert not options or options <= options_of(name, words[0])


def options_of(name: str, sub_command: str) -> set[str]:
    command = BY_NAME[name].load()
    command = getattr(command, "commands", {}).get(sub_command, command)
    return {word for parameter in command.params for word in parameter.opts}


def test_words_of_other_systems_end_with_the_right_ones(shell: Shell) -> None:
    code, reported = shell.fails("list", "a.store")
    assert code == 2
    assert "No such command 'list': write `elasticscan tables STORE`" in reported
    for words, right in (
        (["scan", "a.store", "t", "--where", "x"], "--filter"),
        (["delete", "a.store", "t", "--filter", "x"], "--where"),
        (["scan", "a.store", "t", "--as-of", "2"], "--snapshot"),
        (["scan", "a.store", "t", "--version", "2"], "--snapshot"),
        (["changes", "a.store", "t", "--since", "2"], "--after"),
        (["create", "a.store", "--shards", "s1"], "--shard"),
        (["scan", "a.store", "t", "--limti", "2"], "--limit"),
    ):
        code, reported = shell.fails(*words)
        assert code == 2
        assert f"No such option: {words[-2]} (Possible options: {right})" in " ".join(reported.split())
    for words, write in (
        (["restore", "a.store", "t", "--to", "2"], "restore-table STORE TABLE --to SNAPSHOT"),
        (["export", "a.store", "t", "out", "--format", "csv"], "scan STORE TABLE --format csv"),
        (["history", "a.store", "t", "--svg", "f.svg"], "topologies STORE --svg FILE"),
        (["get", "a.store", "t", "--key", "1"], "get STORE TABLE KEY"),
        (["vacuum", "a.store", "--retain", "168"], "set-retention STORE TABLE PERIOD"),
    ):
        assert f"No such option: {words[-2]}: write `elasticscan {write}`" in shell.fails(*words, "--json")[1]
    written = "No such option: --since: write `elasticscan changes STORE TABLE --after COMMIT`"
    assert written in shell.fails("scan", "a.store", "t", "--since", "2", "--json")[1]
    assert "Possible options: --filter" in shell.fails("scan", "a.store", "t", "--where", "x", "--json")[1]


def test_words_that_do_not_go_with_a_command_are_reported_with_a_call_of_it(shell: Shell) -> None:
    for words, reported in (
        (
            ["create", "a.store", "s1", "s2"],
            "Missing option '--shard'. As in `elasticscan create trips.store",
        ),
        (["expand", "a.store", "--shard", "s1"], "--shard; as in `elasticscan expand trips.store s3`"),
        (
            ["restore", "a.store", "t", "2"],
            "(2): a backup is made a store; of a table: `elasticscan restore-table",
        ),
        (["scan", "a.store", "t", "id,city"], "(id,city): --columns id,km names columns"),
        (["count", "a.store", "t", "id > 1"], "(id > 1): --filter 'km > 9' takes a condition"),
        (["contract", "a.store", "s1", "s2"], "(s2); as in `elasticscan contract trips.store s1`"),
        (
            ["changes", "a.store", "t", "--limit", "3"],
            "No such option: --limit: --page-rows 10 --pages 1 stops",
        ),
        (["changes", "a.store", "t", "--offset", "earliest"], "--offset: --after 16 begins behind commit 16"),
        (["changes", "a.store", "t", "--from-beginning"], "--from-beginning: leave it out: without --after"),
        (["scan", "a.store", "t", "--skip", "3"], "--skip: --pages stops a scan and tells the --key"),
        (["aggregate", "a.store", "t", "count(*)", "--having", "x"], "takes HAVING, ORDER BY and LIMIT"),
        (["index", "list", "a.store", "t", "u"], "as in `elasticscan index list trips.store`"),
        (
            ["tag", "a.store", "t", "june"],
            "'a.store': there are create, drop, list; as in `elasticscan tag create trips.store",
        ),
        (
            ["tag", "delete", "a.store", "t", "x"],
            "'delete': there are create, drop, list; as in `elasticscan tag",
        ),
        (["index", "ls", "a.store", "t"], "as in `elasticscan index list trips.store"),
        (["changes", "a.store", "t", "--follow"], "the same command with --after COMMIT"),
        (["status", "a.store", "--watch"], "`elasticscan ui STORE` shows"),
        (["optimize", "a.store", "--zorder", "id"], "rows lie by their key"),
        (["tag", "drop", "--nope"], "as in `elasticscan tag create trips.store trips june"),
    ):
        code, message = shell.fails(*words, "--json")
        assert (code, reported in message) == (2, True), message


def test_what_is_reported_of_words_that_no_option_says_exists() -> None:
    every = {word for name in BY_NAME for word in options_of(name, "")}
    for typed, reported in {**OPTIONS_TOLD, **MORE_TOLD}.items():
        command, _, option = typed.rpartition(" ")
        assert not command or option not in options_of(command, ""), typed
        assert set(re.findall(r"--[a-z-]+", reported)) <= every, typed
        assert set(re.findall(r"`elasticscan ([a-z-]+)", reported)) <= BY_NAME.keys(), typed


def test_a_command_that_there_is_not_is_reported_with_one_of_a_similar_name(shell: Shell) -> None:
    code, message = shell.fails("cret")
    assert code == 2
    assert "Did you mean 'create'?" in message


@pytest.mark.parametrize(
    ("typed", "completed"), [("sta", "status"), ("status --ta", "--tablets"), ("index cr", "create")]
)
def test_a_shell_completes_commands_and_their_options(
    typed: str, completed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ELASTICSCAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"elasticscan {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit):
        app(prog_name="elasticscan")
    assert capsys.readouterr().out.split() == [completed]


def test_the_list_imports_neither_arrow_nor_sql() -> None:
    code = (
        "import sys\nfrom elasticscan.cli import main\nsys.argv = ['elasticscan', '--help']\n"
        "try:\n    main()\nfinally:\n    heavy = {'pyarrow', 'sqlalchemy', 'sqlglot', 'numpy'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "[]"
    assert "rotate-secret" in done.stdout


def test_a_status_imports_nothing_that_reads_or_draws_for_others(uri: str) -> None:
    others = (
        "pandas pyspark duckdb polars numpy.testing pyarrow.dataset pyarrow.parquet pyarrow.flight "
        "pyarrow.orc sqlalchemy.orm sqlalchemy.dialects.postgresql psycopg botocore starlette "
        "uvicorn sqlglot.executor elasticscan.connector elasticscan.ui "
        "elasticscan.cli.scanning elasticscan.cli.loading"
    )
    code = (
        f"import sys\nfrom elasticscan.cli import main\nsys.argv = ['elasticscan', 'status', {uri!r}]\n"
        f"try:\n    main()\nfinally:\n    others = set({others.split()!r})\n"
        "    print(sorted(others & set(sys.modules)), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert "topology" in done.stdout


def test_the_package_itself_runs_as_the_command_line() -> None:
    words = [sys.executable, "-m", "elasticscan", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip()
