"""How a run chooses its gateway, and how it counts the model usage of earlier generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hyperruntime.errors import GatewayConfigError, GatewayError, SpecError
from hyperruntime.gateway import Budget, GatewayConfig, ModelRule, Spent, Upstream
from hyperruntime.gateway.config.source import derive_config
from hyperruntime.loop.run.plan import contract_adapter
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import (
    choose_gateway,
    evaluation_models,
    spent_by_generation,
    stored_gateway,
)
from hyperruntime.secrets.env_file import parse_dotenv
from tests.doubles.unsafe_files import make_unsafe

VARIABLES = [
    f"{who}_{what}"
    for who in ("OPENAI", "ANTHROPIC", "GEMINI")
    for what in ("API_KEY", "BASE_URL", "API_BASE")
]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own keys from the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def options(**given_options: Any) -> GenerateOptions:
    return GenerateOptions(domains="circle_packing", **given_options)


def choose(tmp_path: Path, dotenv: str | None = None, **given_options: Any) -> GatewayConfig | None:
    if dotenv is not None:
        (tmp_path / ".env").write_text(dotenv)
    offered = contract_adapter(given_options.get("contract")).offers_models
    return choose_gateway(
        options(**given_options), tmp_path, Layout(tmp_path / "run"), offered=offered
    )


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
values = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]))


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.dictionaries(names, values))
def test_quoted_values_are_parsed_unchanged(variables: dict[str, str]) -> None:
    text = "".join(f"export {name} = {quoted(value)}  # why\n" for name, value in variables.items())
    assert parse_dotenv(text) == variables


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert all(isinstance(name, str) for name in parse_dotenv(text))


def test_a_dotenv_file_may_have_comments_quotes_and_escapes() -> None:
    text = (
        "# keys\nA=1\n B = two words # not this\nC='a # b'\nD=\"x\\ny\"\nE=a#b\nF=\nno line\nA=2\n"
    )
    assert parse_dotenv(text) == {
        "A": "2",
        "B": "two words",
        "C": "a # b",
        "D": "x\ny",
        "E": "a#b",
        "F": "",
    }


def test_a_key_alone_does_not_enable_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert choose(tmp_path) is None, "a key in the environment is not a request to spend money"
    assert choose(tmp_path, dotenv="GEMINI_API_KEY=x\nOTHER=1\n") is None
    assert choose(tmp_path, contract="hyperagents") is not None
    assert choose(tmp_path, model="gpt-4o") is not None


def test_a_dotenv_file_names_servers_and_its_keys_are_not_shown(tmp_path: Path) -> None:
    config = choose(
        tmp_path,
        "OPENAI_API_KEY=sk-openai\nANTHROPIC_API_KEY=sk-ant\nANTHROPIC_API_BASE=http://a:1\n",
    )
    assert config is not None
    assert {
        upstream.name: (upstream.url, upstream.load_key()) for upstream in config.upstreams
    } == {
        "openai": ("https://api.openai.com/v1", "sk-openai"),
        "anthropic": ("http://a:1", "sk-ant"),
    }
    assert "sk-" not in repr(config)
    assert config.log == str(tmp_path / "run" / "exchanges.jsonl")


def test_the_environment_overrides_the_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-file\nOPENAI_API_BASE=http://file/v1\n")
    config = derive_config(
        tmp_path / ".env", {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": "http://env/v1"}
    )
    assert config is not None
    (upstream,) = config.upstreams
    assert (upstream.url, upstream.key_env) == ("http://env/v1", "OPENAI_API_KEY")


def test_an_address_of_the_agent_is_named_in_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "OPENAI_API_KEY=sk-file\nOPENAI_BASE_URL=http://file/v1\nANTHROPIC_API_KEY=sk-a\n"
    )
    with capture_logs() as logs:
        derive_config(tmp_path / ".env", {"OTHER": "x"})
        derive_config(
            tmp_path / ".env", {"OPENAI_BASE_URL": "http://env/v1", "OPENAI_API_KEY": "sk-env"}
        )
    assert logs == [
        {
            "event": "models are at the address of the agent's .env",
            "name": "OPENAI_BASE_URL",
            "address": "http://file/v1",
            "log_level": "warning",
        }
    ]


@pytest.mark.parametrize(
    "wish", [{"model": "m"}, {"budget_tokens": 5}, {"budget_generation_money": 1.0}]
)
def test_a_model_or_budget_without_a_server_is_rejected(
    tmp_path: Path, wish: dict[str, Any]
) -> None:
    with pytest.raises(GatewayError, match="no model server is configured"):
        choose(tmp_path, **wish)


def test_a_run_that_had_a_server_is_not_resumed_without_one(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no model server"):
        stored_gateway(options(), {"gateway": True}, Layout(tmp_path), offered=False)


def test_a_missing_key_is_reported_before_the_run_starts(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[gateway]\nupstreams = [{name='u', url='http://u/v1', key_env='MY_KEY'}]\nmodels = []\n"
    )
    with pytest.raises(GatewayError, match="set MY_KEY"):
        choose(tmp_path, gateway=str(path))


def test_a_replay_serves_any_model_in_both_formats(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    with pytest.raises(GatewayError, match="record some first"):
        choose(tmp_path, gateway=f"replay:{tape}")
    tape.write_text("")
    config = choose(tmp_path, gateway=f"replay:{tape}", model="any")
    assert config is not None
    assert {upstream.wire: upstream.replay for upstream in config.upstreams} == {
        "openai": str(tape),
        "anthropic": str(tape),
    }


def test_recording_uses_the_servers_of_the_environment_variables(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no model server is configured"):
        choose(tmp_path, gateway="record:tape.jsonl")
    config = choose(tmp_path, "OPENAI_BASE_URL=http://there/v1\n", gateway="record:tape.jsonl")
    assert config is not None
    assert (config.upstreams[0].url, config.record) == ("http://there/v1", "tape.jsonl")


@pytest.mark.parametrize("prefix", ["", "replay:", "record:"])
def test_the_path_of_a_gateway_source_becomes_absolute(
    prefix: str, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settled = options(gateway=f"{prefix}a b.toml").settled().gateway
    assert settled == f"{prefix}{tmp_path}/a b.toml"


def test_budgets_of_the_options_override_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[gateway]\nupstreams = []\nmodels = []\nbudget = {requests = 5, tokens = 7}\n")
    config = choose(tmp_path, gateway=str(path), budget_tokens=9)
    assert config is not None
    assert config.budget == Budget(requests=5, tokens=9)


@pytest.mark.parametrize("budget", ["budget_money", "budget_generation_money"])
def test_a_budget_of_money_needs_prices(tmp_path: Path, budget: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[gateway]\nupstreams = [{name='u', url='http://u/v1'}]\n"
        "models = [{name='free', upstream='u'}, {name='paid', upstream='u', output_price=2.0}]\n"
    )
    wish: dict[str, Any] = {budget: 1.0, "gateway": str(path)}
    for model in (None, "paid"):
        assert choose(tmp_path, model=model, **wish) is not None
    with pytest.raises(GatewayError, match="no model has a price"):
        choose(tmp_path, model="free", **wish)
    with pytest.raises(GatewayError, match="no model has a price"):
        choose(tmp_path, "OPENAI_BASE_URL=http://there/v1\n", **{budget: 1.0})


BOTH = GatewayConfig(
    upstreams=(
        Upstream(name="o", url="http://o/v1"),
        Upstream(name="a", url="http://a", wire="anthropic"),
    ),
    models=(
        ModelRule(name="small", upstream="o", send_as="qwen-7b", input_price=2.0),
        ModelRule(name="claude-*", upstream="a"),
    ),
)


@pytest.mark.parametrize(
    ("model", "wire", "sent"),
    [
        ("small", "openai", "qwen-7b"),
        ("openai/small", "openai", "qwen-7b"),
        ("claude-x", "anthropic", "claude-x"),
        ("anthropic/claude-x", "anthropic", "claude-x"),
    ],
)
def test_a_chosen_model_answers_requests_for_any_model(model: str, wire: Any, sent: str) -> None:
    mapped = BOTH.with_model(model)
    found = mapped.rule_for("gpt-4o", wire)
    assert found is not None
    assert found[0].send_as == sent
    other = mapped.rule_for("claude-y", "anthropic" if wire == "openai" else "openai")
    assert (other is not None) == (wire == "openai"), "the rules of the other format are unchanged"


def test_a_chosen_model_keeps_its_price_and_must_match_a_rule() -> None:
    assert BOTH.with_model("small").models[0].input_price == 2.0
    for model in ("gpt-4o", "openai/claude-x", "anthropic/small", "", "openai/"):
        with pytest.raises(SpecError, match="model"):
            BOTH.with_model(model)


spents = st.builds(
    Spent,
    requests=st.just(1),
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    money=st.integers(0, 100).map(float),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["initial", "1", "12"]), st.sampled_from(["run", "other"]), spents
        )
    )
)
def test_usage_is_summed_from_the_log_by_generation(
    tmp_path_factory: pytest.TempPathFactory, exchanges: list[tuple[str, str, Spent]]
) -> None:
    log = tmp_path_factory.mktemp("log") / "exchanges.jsonl"
    lines = []
    for genid, run, spent in exchanges:
        usage = {"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens}
        lines.append(
            json.dumps({"seat": f"{run}/{genid}/agent", "usage": usage, "money": spent.money})
        )
        lines.append(json.dumps({"seat": f"{run}/{genid}/agent", "usage": None, "money": 0.0}))
    log.write_text("".join(f"{line}\n" for line in lines) + '{"seat": "run/1/ag')
    expected: dict[str, Spent] = {}
    for genid, run, spent in exchanges:
        if run == "run":
            before = expected.get(genid, Spent())
            sums = {
                name: getattr(before, name) + value for name, value in attrs.asdict(spent).items()
            }
            expected[genid] = Spent(**sums)
    assert spent_by_generation(log, "run") == expected


def test_a_missing_log_means_no_usage(tmp_path: Path) -> None:
    assert spent_by_generation(tmp_path / "none", "run") == {}


# --- a key and its address come from one source ---

URL = "OPENAI_BASE_URL"
KEY = "OPENAI_API_KEY"
HERE = {URL: "http://here/v1", KEY: "sk-here"}
THERE = {URL: "http://there/v1", KEY: "sk-there"}
PUBLIC = "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("here", "there", "server"),
    [
        ((), (URL, KEY), ("http://there/v1", "sk-there")),
        ((), (URL,), ("http://there/v1", "")),
        ((), (KEY,), (PUBLIC, "sk-there")),
        ((URL, KEY), (), ("http://here/v1", "sk-here")),
        ((URL, KEY), (URL, KEY), ("http://here/v1", "sk-here")),
        ((URL, KEY), (URL,), ("http://here/v1", "sk-here")),
        ((URL, KEY), (KEY,), ("http://here/v1", "sk-here")),
        ((URL,), (), ("http://here/v1", "")),
        ((URL,), (URL,), ("http://here/v1", "")),
        ((KEY,), (), (PUBLIC, "sk-here")),
        ((KEY,), (KEY,), (PUBLIC, "sk-here")),
        ((KEY,), (URL,), (KEY, URL)),
        ((KEY,), (URL, KEY), (KEY, URL)),
        ((URL,), (KEY,), (URL, KEY)),
        ((URL,), (URL, KEY), (URL, KEY)),
    ],
)
@pytest.mark.parametrize("family", ["OPENAI", "ANTHROPIC"])
def test_a_key_is_sent_only_to_an_address_of_its_own_source(
    here: tuple[str, ...],
    there: tuple[str, ...],
    server: tuple[str, str],
    family: str,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """The last four combinations are refused: one variable of each source."""
    for name in here:
        monkeypatch.setenv(name.replace("OPENAI", family), HERE[name])
    text = "".join(f"{name}={THERE[name]}\n" for name in there).replace("OPENAI", family)
    if server[0] in THERE:
        outside, inside = (name.replace("OPENAI", family) for name in server)
        said = (
            f"{outside} is set in the environment and {inside} in .*{tmp_path.name}/.env', and "
            "a key is sent only"
        )
        for asked in (
            {},
            {"model": "m"},
            {"gateway": f"record:{tmp_path}/tape.jsonl"},
            {"contract": "hyperagents"},
        ):
            with pytest.raises(GatewayConfigError, match=said):
                choose(tmp_path, text, **asked)
        return
    config = choose(tmp_path, text, contract="hyperagents")
    assert config is not None
    (upstream,) = config.upstreams
    url = (
        server[0].replace(PUBLIC, "https://api.anthropic.com")
        if family == "ANTHROPIC"
        else server[0]
    )
    assert (upstream.url, upstream.load_key()) == (url, server[1])


def test_the_sources_of_one_family_do_not_mix_with_those_of_the_other(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-here")
    config = choose(tmp_path, "ANTHROPIC_API_BASE=http://there\nANTHROPIC_API_KEY=sk-there\n")
    assert config is not None
    found = {one.name: (one.url, one.load_key()) for one in config.upstreams}
    assert found == {"openai": (PUBLIC, "sk-here"), "anthropic": ("http://there", "sk-there")}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "a named pipe, not"),
        ("link", "a symbolic link, not"),
        ("large", "at most 1.0 MiB are read"),
    ],
)
def test_a_dotenv_is_a_regular_file_of_limited_size(tmp_path: Path, kind: str, why: str) -> None:
    make_unsafe(tmp_path / ".env", kind)
    with pytest.raises(GatewayConfigError, match=rf"\.env cannot be read: .*{why}"):
        choose(tmp_path)


# --- a run directory is data: no configuration in it is used ---

IMPORTED = {"imported": True, "agent": "gen_initial/hyperagents", "gateway": False}


@pytest.mark.parametrize("gateway", [None, "record:/tmp/exchanges.jsonl"])
def test_a_dotenv_in_a_run_directory_names_no_server(
    tmp_path: Path, monkeypatch: Any, gateway: str | None
) -> None:
    env_file = tmp_path / "gen_initial/hyperagents/.env"
    env_file.parent.mkdir(parents=True)
    env_file.write_text("OPENAI_BASE_URL=http://198.51.100.1/v1\nOPENAI_API_KEY=sk-of-the-file\n")
    given, layout = options(contract="hyperagents", gateway=gateway), Layout(tmp_path)
    with pytest.raises(
        GatewayConfigError, match=r"OPENAI_BASE_URL and OPENAI_API_KEY is set only in .*--gateway"
    ):
        stored_gateway(given, IMPORTED, layout, offered=True)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-here")
    with pytest.raises(GatewayConfigError, match=r"OPENAI_BASE_URL is set only in .*--gateway"):
        evaluation_models(given, IMPORTED, layout, offered=True)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    config = stored_gateway(given, IMPORTED, layout, offered=True)
    assert config is not None
    assert [(one.url, one.load_key()) for one in config.upstreams] == [
        ("http://127.0.0.1:9/v1", "sk-here")
    ]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_gateway_file_in_the_run_directory_is_refused(
    tmp_path: Path, through_a_link: bool
) -> None:
    run, outside = tmp_path / "run", tmp_path / "c.toml"
    run.mkdir()
    outside.write_text("[gateway]\nupstreams = []\nmodels = []\n")
    inside = run / "c.toml"
    inside.symlink_to(outside) if through_a_link else inside.write_bytes(outside.read_bytes())
    with pytest.raises(GatewayConfigError, match="is in the run directory"):
        choose(tmp_path, gateway=str(inside))
    assert choose(tmp_path, gateway=str(outside)) is not None
    (run / "tape.jsonl").write_text("")
    assert choose(tmp_path, gateway=f"replay:{run}/tape.jsonl") is not None, (
        "recorded answers are data"
    )
