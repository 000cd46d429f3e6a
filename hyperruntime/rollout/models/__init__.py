"""Clients of model servers, each a :class:`~hyperruntime.rollout.agent.model.Model`.

May import ``rollout.agent`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.rollout.agent.model import Model

Wire = Literal["chat", "sglang", "vllm", "completions"]
WIRES: tuple[Wire, ...] = get_args(Wire)


@attrs.frozen(kw_only=True)
class ModelOptions:
    """Which model to ask, and how.

    Attributes:
        name: as its server knows it.
        base_url: such as ``http://127.0.0.1:8000/v1``.
        wire: ``chat`` is OpenAI's chat completions; the others take and give tokens: ``sglang`` and ``vllm`` by
            ``/generate``, ``completions`` by OpenAI's completions with token ids.
        key_env: name of the environment variable that holds the key.
        tokenizer: directory of the model's tokenizer and chat template; for the wires that take tokens.
        timeout_s: for one answer.
        patience_s: how long a request is tried again after its first failure.
        extra: fields of each request (``chat``) or sampling parameters beside ours.
    """

    name: str
    base_url: str
    wire: Wire = "chat"
    key_env: str | None = None
    tokenizer: str | None = None
    timeout_s: float = 900.0
    patience_s: float = 120.0
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Check every field."""
        if not self.base_url.startswith(("http://", "https://")) or "@" in self.base_url:
            raise SpecError(
                "base_url", self.base_url.rpartition("@")[2], "http:// or https:// and a host, no user in it"
            )
        if self.wire not in WIRES:
            raise SpecError("wire", self.wire, f"one of {', '.join(WIRES)}")
        if self.wire != "chat" and self.tokenizer is None:
            raise SpecError("tokenizer", None, f"the model's directory, for wire={self.wire!r} takes tokens")


def open_model(options: ModelOptions) -> Model:
    """Return a client; nothing is connected yet.

    Raises:
        ModelError: its key is not set, or its tokenizer cannot be loaded.
        ExtraMissingError: the tokenizer needs the extra ``tokens``.
    """
    from hyperruntime.rollout.models.server import Server, ServerOptions

    asked = {name: getattr(options, name) for name in ("base_url", "key_env", "timeout_s", "patience_s")}
    server = Server(ServerOptions(**asked))
    if options.wire == "chat":
        from hyperruntime.rollout.models.chat import ChatModel

        return ChatModel(options.name, server, extra=options.extra)
    from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer
    from hyperruntime.rollout.models.tokens import TokenModel

    assert options.tokenizer is not None, "checked"
    tokenizer = DirectoryTokenizer(options.tokenizer)
    return TokenModel(options.name, server, tokenizer, wire=options.wire, extra=options.extra)
