"""Clients of model servers, each a :class:`~hyperruntime.rollout.agent.model.Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.option_fields import NOT_NEGATIVE, OneOf, about, option
from hyperruntime.rollout.agent.model import Model

Wire = Literal["chat", "sglang", "vllm", "completions"]
WIRES: tuple[Wire, ...] = get_args(Wire)


@attrs.frozen(kw_only=True)
class ModelOptions:
    """A model and its server; the text of each field is that of its option.

    Attributes:
        wire: ``chat`` is OpenAI's chat completions. The others send and receive token ids:
            ``sglang`` and ``vllm`` use ``/generate``, ``completions`` uses OpenAI's completions.
        key_env: None for a server without a key.
        extra: more fields of each request (``chat``), or more sampling parameters (other wires).
        patience_s: counted from the first failure.
        input_price: in any currency.

    Example:
        >>> hr.ModelOptions(name="my-model", base_url="http://127.0.0.1:8000/v1").wire
        'chat'
    """

    name: str = option(
        attrs.NOTHING,
        "Name of the model on its server.",
        flag="--model",
        metavar="NAME",
        harmless=True,
    )
    base_url: str = option(
        attrs.NOTHING,
        "Model server, such as http://127.0.0.1:8000/v1.",
        metavar="URL",
        changes=True,
    )
    wire: Wire = attrs.field(
        default="chat",
        validator=OneOf(WIRES),
        metadata=about(
            "Protocol of the server: chat completions, or with token ids (sglang, vllm, "
            "completions).",
            check=OneOf(WIRES),
            written="chat",
            harmless=True,
        ),
    )
    tokenizer: str | None = option(
        None,
        "Directory of the model's tokenizer; required unless --wire chat.",
        metavar="DIR",
    )
    key_env: str | None = option(
        None, "Environment variable that holds the server's key.", metavar="NAME", changes=True
    )
    extra: Mapping[str, Any] = attrs.field(
        factory=dict,
        hash=False,
        metadata=about("More fields of each request, as JSON.", kind="json", harmless=True),
    )
    timeout_s: float = option(
        900.0,
        "Timeout of one request.",
        flag="--model-timeout",
        written="15m",
        changes=True,
        harmless=True,
    )
    patience_s: float = option(
        120.0,
        "Retry a failed request for this time.",
        written="2m",
        changes=True,
        harmless=True,
    )
    input_price: float = option(
        0.0,
        "Price of a million input tokens; the page about the run shows the cost.",
        check=NOT_NEGATIVE,
        changes=True,
        harmless=True,
    )
    output_price: float = option(
        0.0,
        "Price of a million output tokens.",
        check=NOT_NEGATIVE,
        changes=True,
        harmless=True,
    )

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
