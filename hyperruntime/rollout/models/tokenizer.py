"""Load a tokenizer and a chat template from a local directory; nothing is downloaded.

The template is untrusted code, so it is rendered in jinja2's sandbox.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from hyperruntime.errors import ExtraMissingError, ModelError
from hyperruntime.json_values import json_object_of_file
from hyperruntime.rollout.agent.tool_calls import Message, with_calls


class ChatTokenizer(Protocol):
    """Converts text to tokens and back, and renders conversations as text.

    Attributes:
        eos: text of the token that ends an assistant's turn.
        eos_id: id of this token.
    """

    eos: str
    eos_id: int

    def render(self, messages: Sequence[Message], tools: Sequence[Message], *, prompt: bool) -> str:
        """Return a conversation as text.

        Args:
            messages: the conversation.
            tools: tool schemas in OpenAI's form.
            prompt: whether to add the start of an assistant turn.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without adding special tokens; the text may contain special
        tokens.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        ...


class DirectoryTokenizer:
    """The ``tokenizer.json`` and the chat template of a model's directory.

    Attributes:
        eos: text of the token that ends an assistant's turn.
        eos_id: id of this token.
    """

    def __init__(self, directory: str) -> None:
        """Load both.

        Raises:
            ExtraMissingError: the extra ``tokens`` is not installed.
            ModelError: a file of the directory is missing or invalid.
        """
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ExtraMissingError(
                "token-level model servers", "tokenizers and jinja2", "tokens"
            ) from error
        folder = Path(directory)
        config = json_object_of_file(folder / "tokenizer_config.json")
        if config is None:
            raise ModelError(
                f"{folder}/tokenizer_config.json is missing or damaged; name a model's directory"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the package raises plain Exception
            raise ModelError(
                f"{folder}/tokenizer.json cannot be read: {error}; name a model's directory"
            ) from error
        self.eos = _text(config.get("eos_token"))
        found = self._tokenizer.token_to_id(self.eos)
        if found is None:
            raise ModelError(
                f"the eos_token {self.eos!r} of {folder}/tokenizer_config.json is not in "
                "tokenizer.json; correct it"
            )
        self.eos_id: int = found
        self._variables = {
            name: _text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")
        }
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self._template = _compiled(environment, _template(folder, config))

    def render(self, messages: Sequence[Message], tools: Sequence[Message], *, prompt: bool) -> str:
        """Return a conversation as text; the template gets the arguments of tool calls as objects.

        Args:
            messages: the conversation.
            tools: tool schemas in OpenAI's form.
            prompt: whether to add the start of an assistant turn.

        Raises:
            ModelError: the template raises an error.
        """
        try:
            text: str = self._template.render(
                messages=[with_calls(message, with_object) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except Exception as error:  # a template may raise anything
            raise ModelError(
                f"the chat template rejects the conversation: {type(error).__name__}: {error}"
            ) from error
        return text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _compiled(environment: Any, source: str) -> Any:  # noqa: ANN401 - of jinja2
    """Compile a chat template with the filters and globals that model authors expect.

    Raises:
        ModelError: the source is not a valid template.
    """
    from jinja2 import TemplateError

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: dt.datetime.now(tz=dt.UTC).strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the chat template cannot be compiled: {error}") from error


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates
        named = {
            entry.get("name"): entry.get("template")
            for entry in template
            if isinstance(entry, dict)
        }
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ModelError(f"{folder} has no chat template; name the directory of a chat model")
    return template


def _text(token: object) -> str:
    """Return the text of a special token, which may be text or an object with ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool call whose arguments are an object, as chat templates expect; unreadable ones
    stay text.
    """
    try:
        arguments = json.loads(call["function"]["arguments"], strict=False)
    except (ValueError, RecursionError):
        arguments = call["function"]["arguments"]
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)
