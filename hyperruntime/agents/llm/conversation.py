"""Hold a conversation with a model that may call tools: requests, tool calls, results and
limits.
"""

import json

import prompts
import settings
from history import History
from jsontext import Call, parse_arguments, text_calls
from model import ModelError, TooLongError, ToolsUnknownError
from tools import TOOLS, call

_SHRINKS = 4
_OVER = 2  # how many replies may call tools after the last allowed call
_KEPT_MESSAGES = 4  # the newest messages are never shortened
_LEFT_OUT = "[left out to save space]"


class Conversation:
    """The messages of a conversation, its tools and the number of calls left.

    ``messages`` have the form of the OpenAI protocol. If the model has no native tool calls, the
    system message describes the tools and calls are read from the text.
    """

    def __init__(self, model, desk, system, max_calls, history_file=None, tools=TOOLS):
        """Begin with a system message, without a request.

        Args:
            model: a :class:`~model.Model`.
            desk: the state that tools share.
            system: the text of the system message.
            max_calls: the number of allowed tool calls.
            history_file: the path of the chat history; None means none.
            tools: the tools by name.
        """
        self.model = model
        self.history = History(history_file)
        self.calls_left = max_calls
        self.messages = [{"role": "system", "content": system}]
        self._desk = desk
        self._tools = tools
        self._mode = settings.tool_mode()
        self._named = 0
        self._limit = settings.CONVERSATION_CHARS
        self.history.add(f"System ({model.name})", system)
        if self._mode == "text":
            self._describe_tools()

    def say(self, text):
        """Send a message, run the tools that the model calls, and return the text of its first
        reply without calls.

        Raises:
            ModelError: the model cannot be asked.
        """
        self._add("user", text)
        over = 0
        while True:
            reply = self._ask()
            calls = self._calls(reply)
            over += bool(calls) and self.calls_left <= 0
            if not calls or over > _OVER:
                self._keep(reply, [])
                return reply["content"]
            self._keep(reply, calls)
            self._answer(calls, [self._run(one) for one in calls])

    def _ask(self):
        """Return the model's reply; on an error retry with a shorter conversation, or with calls as
        text.
        """
        for _ in range(_SHRINKS):
            shorten(self.messages, self._limit)
            try:
                return self.model.ask(self.messages, self._schemas())
            except ToolsUnknownError as error:
                self.history.add("Tools", f"From here on calls are written as text: {error}")
                self._use_text()
            except TooLongError:
                self._limit = min(self._limit, size(self.messages)) // 2
        raise ModelError(
            "the conversation is too long for the model, even with the older results left out"
        )

    def _schemas(self):
        """Return the tools in the form of the protocol; none in text mode."""
        if self._mode == "text":
            return []
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.NAME,
                    "description": tool.DESCRIPTION,
                    "parameters": tool.PARAMETERS,
                },
            }
            for tool in self._tools.values()
        ]

    def _calls(self, reply):
        """Return the calls of a reply: the native ones, else those in its text."""
        if not self._tools:
            return []
        native = []
        for one in reply["calls"]:
            self._named += 1
            native.append(_native(one, reply["cut"], f"call_{self._named}"))
        return native or text_calls(reply["content"])

    def _keep(self, reply, calls):
        """Append the reply to the messages; invalid arguments become {}, because servers parse them
        again.
        """
        message = {"role": "assistant", "content": reply["content"]}
        native = [one for one in calls if one.number is not None]
        if native:
            message["tool_calls"] = [_as_sent(one) for one in native]
        self.messages.append(message)
        text = reply["content"] or ("(only calls)" if native else "(nothing)")
        self.history.add("Model" + " (cut off at the token limit)" * reply["cut"], text)
        for one in native:
            self.history.call(one.name, one.arguments)

    def _run(self, one):
        if self.calls_left <= 0:
            return "Error: no call of a tool is left; finish now"
        self.calls_left -= 1
        result = (
            f"Error: {one.problem}" if one.problem else call(self._desk, one.name, one.arguments)
        )
        if self.calls_left <= settings.CALLS_LEFT_TOLD:
            result += "\n" + prompts.calls_left(self.calls_left)
        return result

    def _answer(self, calls, results):
        """Append the results of calls to the messages."""
        for one, result in zip(calls, results, strict=True):
            self.history.result(one.name, result)
        if calls[0].number is not None:
            for one, result in zip(calls, results, strict=True):
                self.messages.append(
                    {"role": "tool", "tool_call_id": one.number, "content": result}
                )
        else:
            self.messages.append({"role": "user", "content": prompts.text_results(results)})

    def _add(self, role, text):
        self.messages.append({"role": role, "content": text})
        self.history.add(role.capitalize(), text)

    def _use_text(self):
        """Continue without native calls; rewrite the earlier results as text."""
        self._mode = "text"
        self._describe_tools()
        for message in self.messages:
            if message["role"] == "tool":
                message.update(role="user", content=prompts.text_results([message["content"]]))
                del message["tool_call_id"]
            message.pop("tool_calls", None)

    def _describe_tools(self):
        if self._tools:
            self.messages[0]["content"] += "\n\n" + prompts.tools_as_text(self._tools)


def _native(one, cut, name_of_call):
    """Return a native call; the server may have sent any JSON value."""
    one = one if isinstance(one, dict) else {}
    function = one.get("function") if isinstance(one.get("function"), dict) else {}
    name, text = function.get("name"), function.get("arguments")
    if isinstance(text, dict):  # some servers send an object
        text = json.dumps(text)
    arguments, problem = parse_arguments(text if isinstance(text, str) else "")
    if problem and cut:
        problem = (
            "the reply was cut off at its token limit before the call was complete; do less in "
            "one call"
        )
    return Call(
        name if isinstance(name, str) else None,
        arguments,
        problem,
        str(one.get("id") or name_of_call),
    )


def _as_sent(one):
    function = {"name": one.name or "unknown", "arguments": json.dumps(one.arguments or {})}
    return {"id": one.number, "type": "function", "function": function}


def size(messages):
    """Return the number of characters of a conversation."""
    return sum(len(json.dumps(message, ensure_ascii=False)) for message in messages)


def shorten(messages, limit):
    """Leave out the oldest results and arguments until a conversation fits; the task and the newest
    messages stay.

    Args:
        messages: the messages; changed in place.
        limit: the number of characters.
    """
    left = size(messages) - limit
    for message in messages[2:-_KEPT_MESSAGES]:
        if left <= 0:
            return
        before = size([message])
        if message["role"] != "assistant" and len(message["content"]) > len(_LEFT_OUT):
            message["content"] = _LEFT_OUT
        for one in message.get("tool_calls", []):
            if len(one["function"]["arguments"]) > len(_LEFT_OUT):
                one["function"]["arguments"] = "{}"
        left -= before - size([message])
