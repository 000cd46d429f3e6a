"""Send requests to a model over the OpenAI protocol; OPENAI_BASE_URL and OPENAI_API_KEY name the
server and its key.
"""

import os
import re

import openai
import settings

_BAD_REQUEST = (400, 404, 422, 501)
# OpenRouter's 402 says "Prompt tokens limit exceeded", and means the credits
_ACCOUNT = (401, 402, 403)
_SEARCHED = 1000  # characters of an answer: a server may quote the conversation after its own words
_TOO_LONG = re.compile(  # each server has words of its own
    r"context[\s_-]*(length|window|size|limit|shift)|ContextWindow|exceed_context|request_too_large"
    r"|(prompt|input) (is )?too long|reduce the length|model token limit|maximum (prompt|model) length|n_ctx"
    r"|input length should be|inputs?`? (tokens? \+|must have less)|input token count",
    re.IGNORECASE,
)
# newer models need this name; other servers know only the older one
_NEW_LIMIT = "max_completion_tokens"


class ModelError(Exception):
    """The request to the model failed."""


class RefusedError(ModelError):
    """The server refuses further requests: a budget is used up, or the model is not allowed."""


class ToolsUnknownError(ModelError):
    """The server or the model does not support native tool calls."""


class TooLongError(ModelError):
    """The conversation is too long for the model."""


class Model:
    """A model of a server.

    ``ask`` returns a dictionary: ``content`` (text), ``calls`` (as the server sent them) and
    ``cut`` (whether the reply reached its token limit).
    """

    def __init__(self, name):
        self.name = name
        self.limit_name = "max_tokens"
        self._client = openai.OpenAI(
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=settings.REQUEST_TIMEOUT_S,
            max_retries=settings.REQUEST_RETRIES,
        )

    def ask(self, messages, tools=()):
        """Return the model's next message.

        Args:
            messages: the messages in the form of the OpenAI protocol.
            tools: the tools in the form of the OpenAI protocol.

        Raises:
            ToolsUnknownError: tools are not supported; the caller can describe them as text and
                retry.
            TooLongError: the messages are too long; the caller can shorten them and retry.
            RefusedError: the server refuses further requests.
            ModelError: the request failed for another reason.
        """
        request = {"model": self.name, "messages": messages, self.limit_name: settings.MAX_TOKENS}
        if tools:
            request["tools"] = list(tools)
        try:
            response = self._client.chat.completions.with_raw_response.create(**request)
            return _message(response.http_response)
        except openai.APIStatusError as error:
            if (
                self.limit_name != _NEW_LIMIT
                and error.status_code in _BAD_REQUEST
                and _NEW_LIMIT in _said(error)
            ):
                self.limit_name = _NEW_LIMIT
                return self.ask(messages, tools)
            raise _translate(error, bool(tools)) from error
        except openai.OpenAIError as error:
            raise ModelError(f"the model {self.name!r} cannot be asked: {error}") from error


def _message(response):
    """Return the content, the calls and whether the reply was cut, from a completion."""
    try:
        choice = response.json()["choices"][0]
        message = choice["message"]
        content, calls = message.get("content"), message.get("tool_calls")
        cut = choice.get("finish_reason") == "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the server's answer is not a chat completion: {response.text[:300]!r}"
        ) from error
    if isinstance(content, list):  # some servers answer in parts
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return {
        "content": content if isinstance(content, str) else "",
        "calls": calls if isinstance(calls, list) else [],
        "cut": cut,
    }


def _translate(error, with_tools):
    """Return our error for an error of the server."""
    status, said = error.status_code, _said(error)
    low = said.lower()
    if status == 403:
        return RefusedError(f"the model server refuses further requests: {said}")
    could_be_long = status not in _ACCOUNT and (400 <= status < 500 or status == 500)
    if could_be_long and _TOO_LONG.search(f"{said} {error.response.text[:_SEARCHED]}"):
        return TooLongError(said)
    if status in _BAD_REQUEST and with_tools and ("tool" in low or "function" in low):
        return ToolsUnknownError(said)
    return ModelError(f"the model server answered with HTTP status {status}: {said}")


def _said(error):
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            kind = inner.get("code") or inner.get("type")
            return f"{inner['message']} ({kind})" if kind else inner["message"]
    return str(error)[:500]
