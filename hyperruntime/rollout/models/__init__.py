"""Clients of model servers, each a :class:`~hyperruntime.rollout.agent.model.Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.option_fields import NOT_NEGATIVE, OneOf
from hyperruntime.rollout.agent.model import Model

Wire = Literal["chat", "sglang", "vllm", "completions"]
WIRES: tuple[Wire, ...] = get_args(Wire)


@attrs.frozen(kw_only=True)
class ModelOptions:
    """A model and its server.

    Attributes:
        name: name of the model on the server.
        base_url: such as ``http://127.0.0.1:8000/v1``.
        wire: ``chat`` is OpenAI's chat completions. The others send and receive token ids:
            ``sglang`` and ``vllm`` use ``/generate``, ``completions`` uses OpenAI's completions.
        key_env: name of the environment variable that holds the API key, or None.
        tokenizer: directory of the model's tokenizer and chat template; required unless ``wire`` is
            ``chat``.
        timeout_s: timeout of one request.
        patience_s: how long to retry a request after its first failure.
        input_price: price of a million input tokens, in any currency; the page about a run shows
            the cost.
        output_price: price of a million output tokens.
        extra: more fields of each request (``chat``), or more sampling parameters (other wires).

    Example:
        >>> hr.ModelOptions(name="my-model", base_url="http://127.0.0.1:8000/v1").wire
        'chat'
    """

    name: str
    base_url: str
    wire: Wire = attrs.field(default="chat", validator=OneOf(WIRES))
    key_env: str | None = None
    tokenizer: str | None = None
    timeout_s: float = 900.0
    patience_s: float = 120.0
    input_price: float = attrs.field(default=0.0, validator=NOT_NEGATIVE)
    output_price: float = attrs.field(default=0.0, validator=NOT_NEGATIVE)
    extra: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def __attrs_post_init__(self) -> None:
        """Validate the fields."""
        if not self.base_url.startswith(("http://", "https://")) or "@" in self.base_url:
            raise SpecError(
                "base_url",
                self.base_url.rpartition("@")[2],
                "http:// or https:// and a host, without a user",
            )
        if self.wire != "chat" and self.tokenizer is None:
            raise SpecError(
                "tokenizer", None, f"the model's directory; wire={self.wire!r} needs its tokenizer"
            )


def open_model(options: ModelOptions) -> Model:
    """Return a client; it connects on the first request.

    Raises:
        ModelError: the variable of the key is not set, or the tokenizer cannot be loaded.
        ExtraMissingError: the tokenizer needs the extra ``tokens``, which is not installed.
    """
    if options.wire == "chat":
        from hyperruntime.rollout.models.chat import ChatModel

        return ChatModel(options)
    from hyperruntime.rollout.models.token_model import TokenModel
    from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer

    assert options.tokenizer is not None, "checked"
    return TokenModel(options, DirectoryTokenizer(options.tokenizer))
