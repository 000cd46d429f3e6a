"""R22: the preflight finds a chat template that drops ``tools`` and a server that returns no
tokens.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from tests.doubles.byte_tokenizer import ByteTokenizer, render_hermes
from tests.doubles.tokenserver import token_server
from tests.doubles.upstream import chat, scripted_upstream

GOOD = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<s>{{ m.content "
    "}}</s>{% endfor %}"
)
DROPS = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


class Drops(ByteTokenizer):
    """A tokenizer whose template drops the tools."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        prompt: bool,
    ) -> str:
        return super().render(messages, (), prompt=prompt)


def directory(path: Path, template: str) -> str:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel(vocab={"</s>": 0, "<unk>": 1}, unk_token="<unk>")).save(
        str(path / "tokenizer.json")
    )
    config = {"eos_token": "</s>", "chat_template": [{"name": "default", "template": template}]}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)


def checks(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["rollout", "preflight", "--model", "m", "--patience", "1s", "--json", *args])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)}


def speak(prompt: str) -> str:
    return (
        render_hermes("look_up", {"word": "x"})
        if "# Tools" in prompt and "nothing found" not in prompt
        else "no"
    )


@pytest.mark.parametrize(("template", "state"), [(GOOD, "ok"), (DROPS, "failed")])
def test_r22_a_local_template_is_rendered_with_and_without_tools(
    template: str, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--wire", "sglang", "--tokenizer", directory(tmp_path, template))
    with token_server(speak) as server:
        code, found = checks(capsys, "--base-url", server.url, *where)
    assert found["template"]["state"] == state
    assert "never sees" in found["template"]["detail"] or state == "ok"
    assert state == "ok" or code == 1


def test_r22_a_servers_own_template_that_drops_tools_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with token_server(speak, tokenizer=Drops()) as server:
        code, found = checks(capsys, "--base-url", server.url)
    assert (code, found["template"]["state"]) == (1, "failed")
    assert "drops them" in found["template"]["detail"]


def test_a_server_with_all_features_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with token_server(speak) as server:
        code, found = checks(capsys, "--base-url", server.url, "--require-tokens")
    assert code == 0
    assert {name: check["state"] for name, check in found.items()} == {
        "server": "ok",
        "template": "ok",
        "tokens": "ok",
        "tool calls": "ok",
        "conversation": "ok",
    }


@pytest.mark.parametrize(
    ("more", "code", "state"), [((), 0, "warning"), (("--require-tokens",), 1, "failed")]
)
def test_a_server_without_token_ids_is_a_warning_or_a_failure(
    more: tuple[str, ...], code: int, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_upstream(
        lambda r: chat("hi", prompt_tokens=10 + len(r.body.get("tools", ())))
    ) as server:
        found_code, found = checks(capsys, "--base-url", server.url, *more)
    assert (found_code, found["tokens"]["state"]) == (code, state)


def test_an_unreachable_server_fails_the_server_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._REACH_S", 0)
    code, found = checks(capsys, "--base-url", "http://127.0.0.1:9/v1")
    assert (code, found["server"]["state"]) == (1, "failed")
