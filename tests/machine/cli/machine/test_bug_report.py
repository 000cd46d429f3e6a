"""A bug report says what matters, and no key that a user has anywhere is in it, in any spelling."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import pytest

import hyperruntime
from hyperruntime.cli.machine import bug_report
from hyperruntime.errors import AgentError, ArchiveError
from hyperruntime.runs.own_mark import with_own_mark
from hyperruntime.secrets.values import SecretValues
from tests.command import cli

# Where a user keeps it -> the secret. None has a prefix by which it could be known.
SECRETS = {
    "variable of a model client": "Vj4kQ9xTz2LmWp8sRb",
    "variable of another program": "hG7nB3vYc6KdXe1uQa",
    "password of a proxy": "pR0xyPassw0rdZz93",
    "variable in .env": "mN5tJ8wEr4YxUi2oPs",
    "odd variable in .env": "zX9cV7bN5mA3sD1fGh",
    "key file of the gateway": "lK6jH4gF2dS0aQ8wEr",
    "variable that the gateway names": "tY1uI3oP5aS7dF9gHj",
    "header in a configuration": "qW2eR4tY6uI8oP0aSd",
    "number in a configuration": "4815162342108777",
    "environment in a configuration": "bN8mK2jH5gT7rE3wQz",
    "option of an environment": "sD4fG6hJ8kL0pO2iUy",
    "options of a run": "cV3xZ9lK7jH1gF5dSa",
    "env file of the agent": "oP9iU7yT5rE3wQ1aZx",
}


def spellings(secret: str) -> list[str]:
    """Return the ways in which the log of the run writes a secret."""
    raw = secret.encode()
    return [
        secret,
        base64.b64encode(raw).decode(),
        base64.b64encode(b"user:" + raw).decode(),
        base64.urlsafe_b64encode(b"x" + raw).decode(),
        base64.b32encode(raw).decode(),
        raw.hex(),
        raw.hex().upper(),
        " ".join(f"{byte:02x}" for byte in raw),
        secret[::-1],
        "".join(f"\\u{ord(sign):04x}" for sign in secret),
        "".join(f"%{byte:02X}" for byte in raw),
        quote(quote(f"/{secret}/")),
        "".join(f"&#{byte};" for byte in raw),
        "-".join(secret),
        f"{secret[:7]}\n{secret[7:]}",
        f"{secret[:9]}\\n{secret[9:]}",
        secret.upper(),
        "".join(map(chr, secret.encode("utf-16-le"))).replace("\0", "\\x00"),
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in which every secret lies where users keep them, and a run whose log
    writes all of them.
    """
    tmp_path = tmp_path_factory.mktemp("user")
    (tmp_path / ".env").write_text(
        f"ANTHROPIC_API_KEY={SECRETS['variable in .env']}\nLANGFUSE={SECRETS['odd variable in .env']}\nMODEL=small\n"
    )
    (tmp_path / "key.txt").write_text(f"{SECRETS['key file of the gateway']}\n")
    (tmp_path / "gateway.toml").write_text(
        f"""
# the old one was {SECRETS["header in a configuration"]}
[generate]
max-generation = 7
headers = {{ X-Thing = "{SECRETS["header in a configuration"]}" }}
pin_token = {SECRETS["number in a configuration"]}
env = ["MODE={SECRETS["environment in a configuration"]}"]
[[gateway.upstreams]]
name = "mine"
url = "https://models.example/v1"
key_file = "key.txt"
[[gateway.upstreams]]
name = "other"
url = "https://models.example/v1"
key_env = "ODD_NAME"
"""
    )
    agent, run = tmp_path / "agent", tmp_path / "run"
    agent.mkdir()
    run.mkdir()
    (agent / ".env").write_text("OPENAI_API_KEY=" + SECRETS["env file of the agent"])
    options = {
        "agent": str(agent),
        "seed": 3,
        "api_key": SECRETS["options of a run"],
        "max_tokens": 4096,
        "domains": ["circle_packing"],
        "environment": "terminal",
        "options": {"tasks": "hard-ones"},
        "option": [f"tracker_token={SECRETS['option of an environment']}", "split=training"],
    }
    (run / "run.json").write_text(json.dumps({"schema": 1, "options": options}))
    lines = [f"attempt {spelling}" for secret in SECRETS.values() for spelling in spellings(secret)]
    (run / "generate_loop.log").write_text("\n".join([*lines, "the end of the log"]) + "\n")
    (run / "journal.jsonl").write_text(
        "".join(json.dumps({"genid": 1, "reason": line}) + "\n" for line in lines)
        + '{"genid": 2, "score": 0.5}\n'
    )
    (run / "groups.jsonl").symlink_to("/etc/hostname")
    return tmp_path


def hyperrun(place: Path, *args: str) -> tuple[int, str]:
    env = {
        "PATH": str(place / "no programs"),
        "PWD": str(place),
        "HOME": str(place / "home of somebody"),
        "OPENAI_API_KEY": SECRETS["variable of a model client"],
        "WEATHER_SERVICE_TOKEN": SECRETS["variable of another program"],
        "ODD_NAME": SECRETS["variable that the gateway names"],
        "https_proxy": f"http://me:{SECRETS['password of a proxy']}@proxy.example:3128",
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    done = subprocess.run(
        cli(*args),
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(place: Path) -> tuple[dict[str, bytes], str]:
    """Return the files of a report about the run, and what the command said."""
    code, said = hyperrun(
        place, "bug-report", "run", "--config", "gateway.toml", "-o", "report.tar.gz"
    )
    assert code == 0, said
    return contents(place / "report.tar.gz"), said


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {
            name.partition("/")[2]: file.read() for name, file in files.items() if file is not None
        }


def decoded(data: bytes) -> set[bytes]:
    """Return the letters and digits of bytes, read as an attacker would: as they are, and with
    escapes undone.
    """
    texts = {data, data.replace(b"\\n", b""), data[::-1]}
    return {bytes(byte for byte in text if chr(byte).isalnum()).lower() for text in texts}


def test_no_planted_key_is_in_the_report_in_any_spelling(
    place: Path, report: tuple[dict[str, bytes], str]
) -> None:
    files, said = report
    found = [
        (name, where, spelling)
        for name, data in {
            **files,
            "the names": " ".join(files).encode(),
            "what was said": said.encode(),
        }.items()
        for where, secret in SECRETS.items()
        for spelling in spellings(secret)
        for view in decoded(data)
        if bytes(byte for byte in spelling.encode() if chr(byte).isalnum()).lower() in view
    ]
    assert found == []
    assert (place / "report.tar.gz").stat().st_mode & 0o777 == 0o600


def test_a_report_says_what_matters(report: tuple[dict[str, bytes], str]) -> None:
    files, said = report
    assert json.loads(files["versions.json"])["hyperruntime"] == hyperruntime.__version__
    assert b"[redacted]" not in files["doctor.json"]  # the working directory is no password
    assert {"machine", "podman", "bubblewrap"} <= set(json.loads(files["doctor.json"]))
    engines = {one["runtime"]: one for one in json.loads(files["engines.json"])}
    assert "PATH" in engines["bubblewrap"]["why_not"] or "root" in engines["bubblewrap"]["why_not"]
    assert {"OPENAI_API_KEY", "XDG_CACHE_HOME"} <= set(json.loads(files["environment.json"]))
    gateway = json.loads(files["configuration/0-gateway.json"])
    assert gateway["generate"]["max-generation"] == 7
    assert gateway["generate"]["env"] == ["MODE=[redacted]"]
    assert [one["name"] for one in gateway["gateway"]["upstreams"]] == ["mine", "other"]
    assert gateway["gateway"]["upstreams"][1]["key_env"] == "ODD_NAME"
    options = json.loads(files["run/run.json"])["options"]
    assert (options["seed"], options["max_tokens"], options["api_key"]) == (3, 4096, "[redacted]")
    assert (options["domains"], options["environment"]) == (["circle_packing"], "terminal")
    assert options["options"] == {"tasks": "hard-ones"}
    assert options["option"] == ["tracker_token=[redacted]", "split=training"]
    assert b"the end of the log" in files["run/generate_loop.log"]
    assert b'{"genid": 2, "score": 0.5}' in files["run/journal.jsonl"]
    assert "run/groups.jsonl" not in files  # a link may lead anywhere
    assert b"home of somebody" not in b"".join(files.values())
    assert all(name in said for name in files)
    assert "looking at" in said  # what takes long is named while it runs


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return an empty current directory, in which a report asks no engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bug_report, "engine_names", lambda runtime: [])
    monkeypatch.setattr(bug_report, "all_findings", lambda names, on_part: {})
    return tmp_path


def test_a_run_of_somebody_else_adds_no_file_and_stops_no_report(no_engines: Path) -> None:
    private, run = no_engines / "private", no_engines / "run"
    private.mkdir()
    run.mkdir()
    (private / "notes.json").write_text('{"options": {"diary": "dear me"}}')
    (private / "other.toml").write_text('diary = "dear me"\n[gateway]\nkey_file = "key"\n')
    os.mkfifo(private / "key")
    os.mkfifo(run / ".env")
    options = {
        "gateway": str(private / "other.toml"), "more": {"gateway": str(private / "other.toml")},
        "keys": [{"key_file": "~nosuchuser/x"}, {"key_file": "/dev/zero"}], "agent": "/dev",
    }  # fmt: skip
    (run / "run.json").write_text(
        json.dumps({"gateway": str(private / "notes.json"), "options": options})
    )
    files = bug_report.report_files(None, run, [])
    assert "run/gateway.json" not in files
    assert files["run/gateway.txt"].startswith(b"left out: this user did not make the run")
    assert b"dear me" not in b"".join(files.values())
    (run / "run.json").unlink()
    (run / "run.json").symlink_to(private / "notes.json")
    with pytest.raises(ArchiveError, match=r"has no readable run\.json"):
        bug_report.report_files(None, run, [])


def test_the_gateway_of_an_own_run_is_in_its_report(no_engines: Path) -> None:
    run, gateway = no_engines / "run", no_engines / "mine.toml"
    run.mkdir()
    gateway.write_text('diary = "dear me"\n[gateway]\nkey_file = "key"\n')
    (run / "run.json").write_text(
        json.dumps(with_own_mark({"options": {"gateway": str(gateway)}}, run))
    )
    files = bug_report.report_files(None, run, [])
    assert json.loads(files["run/gateway.json"]) == {"gateway": {"key_file": "key"}}
    assert b"dear me" not in b"".join(files.values())


def test_the_hyperrun_toml_of_the_current_directory_may_be_no_link(no_engines: Path) -> None:
    (no_engines / "private.toml").write_text('diary = "dear me"\n')
    (no_engines / "hyperrun.toml").symlink_to("private.toml")
    files = bug_report.report_files(None, None, [])
    assert (
        "a symbolic link, not a regular file"
        in json.loads(files["configuration/0-hyperrun.json"])["unreadable"]
    )
    assert b"dear me" not in b"".join(files.values())
    named = bug_report.report_files(None, None, [Path("hyperrun.toml")])
    assert json.loads(named["configuration/0-hyperrun.json"]) == {"diary": "dear me"}


def test_a_broken_configuration_is_described_unless_it_was_asked_for(no_engines: Path) -> None:
    (no_engines / "hyperrun.toml").write_text("[generate\n")
    files = bug_report.report_files(None, None, [])
    assert "line 1" in json.loads(files["configuration/0-hyperrun.json"])["unreadable"]
    with pytest.raises(AgentError, match="cannot be read as TOML"):
        bug_report.report_files(None, None, [Path("hyperrun.toml")])


HIDDEN = "[redacted]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"db_pass": "abc", "accessKey": "abc"}, {"db_pass": HIDDEN, "accessKey": HIDDEN}),
        ({"aws-creds": "abc", "smtp.pass": "abc"}, {"aws-creds": HIDDEN, "smtp.pass": HIDDEN}),
        (
            {"pass_at_1": 0.5, "monkey": "abc", "keys": None},
            {"pass_at_1": 0.5, "monkey": "abc", "keys": None},
        ),
        ({"env": {"PIN": 12345678, "is_on": True}}, {"env": {"PIN": HIDDEN, "is_on": True}}),
        ({"env": {"deep": {"A": ["abc", 1.5]}}}, {"env": {"deep": {"A": [HIDDEN, HIDDEN]}}}),
        (
            {"headers": ["X-Custom: abc", "A=b:c"]},
            {"headers": ["X-Custom:[redacted]", "A=[redacted]"]},
        ),
        ({"environment": "world.py:World"}, {"environment": "world.py:World"}),
        ({"option": ["url=https://a.example:80/"]}, {"option": ["url=https://a.example:80/"]}),
    ],
)
def test_values_are_hidden_by_name_and_by_place(
    value: object, shown: object, no_engines: Path
) -> None:
    assert SecretValues().clean_value(value) == shown


def test_what_a_table_of_variables_hides_is_removed_from_logs_too(
    no_engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"DB_PASS": "first-hidden-one", "AWS_CREDS": "second-hidden-one"}
    for name, secret in variables.items():
        monkeypatch.setenv(name, secret)
    secrets = SecretValues()
    secrets.learn_values(
        {
            "env": {"PIN": 12345678, "deep": {"A": "third-hidden-one"}},
            "headers": ["X: fourth-hidden"],
        }
    )
    hidden = [*variables.values(), "12345678", "third-hidden-one", "fourth-hidden"]
    cleaned = secrets.clean_lines("\n".join(f"a line with {one}" for one in hidden))
    assert [one for one in hidden if one in cleaned] == []
    assert cleaned.count("a line with") == 5


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            r'{"detail": "got {\"api_key\": \"zzz\"}"}',
            r'{"detail": "got {\"api_key\": \"[redacted]\"}"}',
        ),
        ("Authorization: Token abc", "Authorization: Token [redacted]"),
        ("db_pass=abcdef accessKey: 'abc'", "db_pass=[redacted] accessKey: '[redacted]'"),
        ("2 tests pass: everything", "2 tests pass: everything"),
        ("max_tokens=4096000", "max_tokens=4096000"),
    ],
)
def test_secrets_in_logs_are_found_by_the_name_before_them(
    line: str, shown: str, no_engines: Path
) -> None:
    assert SecretValues().clean_lines(line) == shown


def test_private_keys_of_many_lines_are_removed_also_without_their_beginning(
    no_engines: Path,
) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nKCAQEA\n-----END RSA PRIVATE KEY-----\n"
    secrets = SecretValues()
    assert (
        secrets.clean_lines(f"before\n{key}between\n{key}after\n")
        == "before\n[redacted]\nbetween\n[redacted]\nafter\n"
    )
    assert secrets.clean_lines(f"{key[40:]}after\n{key}") == "[redacted]\nafter\n[redacted]\n"


def test_an_archive_that_exists_is_not_replaced(place: Path) -> None:
    (place / "mine.tar.gz").write_text("mine")
    code, said = hyperrun(place, "bug-report", "-o", "mine.tar.gz")
    assert (code, (place / "mine.tar.gz").read_text()) == (1, "mine")
    assert "mine.tar.gz exists already; remove it, or choose another name with --output" in said


def test_a_hostile_log_takes_no_unbounded_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["variable of a model client"])
    secrets = SecretValues()
    for text in (
        "a." * 30_000,
        "token" * 12_000,
        '"' * 60_000,
        "://" * 20_000,
        "Bearer " * 8_000,
        "key=\\" * 12_000,
    ):
        assert isinstance(secrets.clean_text(text), str)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions() -> dict[str, str]:
    """Return the version of each installed package by its canonical name."""
    return {canonical(one.name): one.version for one in metadata.distributions() if one.name}


def test_the_versions_for_a_bug_report_are_printed_as_json(place: Path) -> None:
    code, said = hyperrun(place, "--version", "--json")
    facts: Mapping[str, object] = json.loads(said)
    assert code == 0
    assert facts["hyperruntime"] == hyperruntime.__version__
    assert facts["interfaces"] == {
        "driver": 1,
        "domain": 1,
        "environment": 1,
        "executor": 1,
        "selection rule": 1,
        "trainer": 1,
    }
    assert "Linux" in str(facts["kernel"])
    installed, required, optional = distributions(), facts["packages"], facts["optional_packages"]
    assert isinstance(required, dict)
    assert isinstance(optional, dict)
    assert (required["aiohttp"], optional["pytest"]) == (installed["aiohttp"], installed["pytest"])
    wanted = {re.split(r"[^\w.-]", line)[0] for line in metadata.requires("hyperruntime") or ()}
    assert required.keys() | optional.keys() == {
        name for name in wanted if canonical(name) in installed
    }
    plugins = facts["plugins"]
    assert isinstance(plugins, list)
    assert {"hyperruntime.runtimes", "hyperruntime.agents", "hyperruntime.servers"} <= {
        one["group"] for one in plugins
    }
    assert hyperrun(place, "--version") == (0, f"hyperrun {hyperruntime.__version__}\n")
    code, said = hyperrun(place, "--json", "doctor")
    assert (code, "--json before a command requires --version" in said) == (2, True)


def test_the_name_of_the_package_is_a_command_too() -> None:
    program = os.path.join(os.path.dirname(sys.executable), "hyperruntime")
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    assert done.stdout == f"hyperrun {hyperruntime.__version__}\n"
