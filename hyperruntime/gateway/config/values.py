"""What a gateway is told: upstreams, models, budgets, limits. Values only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from hyperruntime.errors import GatewayConfigError, SpecError
from hyperruntime.gateway.config.dotenv import parse_dotenv
from hyperruntime.units import MIB

Wire = Literal["openai", "anthropic"]
WIRES: tuple[Wire, ...] = ("openai", "anthropic")
REPLAY = "replay:"
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _amount(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
        raise SpecError(f"{type(instance).__name__}.{attribute.name}", value, "a number, zero or more")


def _positive(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked here
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SpecError(f"{type(instance).__name__}.{attribute.name}", value, "a number above zero")


@attrs.frozen(kw_only=True)
class Upstream:
    """A server that answers, or a file of recorded answers.

    Attributes:
        name: how model rules name it.
        url: its base URL, as its clients are given it (``https://api.openai.com/v1``); or ``replay:FILE``.
        wire: the format it speaks; requests are passed through, never translated.
        key_env: name of the host's environment variable that holds its key.
        key_file: file of the host that holds its key, instead.
        key_name: the variable in ``key_file`` that is the key, where that is a file of such (``.env``).
        proxy: URL of an HTTP proxy on the way.
        token_ids: whether it sends token ids when asked, as vLLM does.
    """

    name: str
    url: str
    wire: Wire = "openai"
    key_env: str | None = None
    key_file: str | None = None
    key_name: str | None = None
    proxy: str | None = None
    token_ids: bool = False

    def __attrs_post_init__(self) -> None:
        """Check every field."""
        if not _NAME.fullmatch(self.name):
            raise SpecError("Upstream.name", self.name, "letters, digits, '.', '_' and '-'")
        if self.wire not in WIRES:
            raise SpecError("Upstream.wire", self.wire, f"one of {', '.join(WIRES)}")
        if not self.replay and not _URL.fullmatch(self.url):
            shown = re.sub(r"//[^/]*@", "//...@", self.url)
            raise SpecError("Upstream.url", shown, "http:// or https:// and a host, no user in it, or replay:FILE")
        if self.key_env and self.key_file:
            raise SpecError("Upstream.key_file", self.key_file, "None where key_env is given")

    @property
    def replay(self) -> str:
        """The file of recorded exchanges, or nothing."""
        return self.url.removeprefix(REPLAY) if self.url.startswith(REPLAY) else ""

    def check(self) -> None:
        """Do nothing where its key and its recorded answers are there.

        Raises:
            GatewayConfigError: one is not.
        """
        self.load_key()
        if self.replay and not os.path.isfile(self.replay):
            raise GatewayConfigError(f"there are no recorded exchanges in {self.replay}; record some first")

    def load_key(self) -> str:
        """Return its key from the host's environment or file; empty where it needs none.

        Raises:
            GatewayConfigError: the variable is not set, or the file cannot be read.
        """
        if self.key_env is not None:
            if key := os.environ.get(self.key_env, "").strip():
                return key
            raise GatewayConfigError(f"upstream {self.name!r} needs a key: set {self.key_env} in the environment")
        if self.key_file is None:
            return ""
        try:
            text = Path(self.key_file).read_text()
            key = text.strip() if self.key_name is None else parse_dotenv(text).get(self.key_name, "")
        except (OSError, ValueError) as error:
            raise GatewayConfigError(f"the key of upstream {self.name!r} cannot be read: {error}") from error
        if not key or not key.isprintable():
            raise GatewayConfigError(f"the key file of upstream {self.name!r} is empty or no text: {self.key_file}")
        return key


@attrs.frozen(kw_only=True)
class ModelRule:
    """Which models may be called, where they go and what they cost. The first rule that matches a request holds.

    Attributes:
        name: as the agent says it; ``*`` and ``?`` match as in file names.
        upstream: the name of an upstream.
        send_as: the name that the upstream is told; None is the same.
        input_price: of a million input tokens, in any currency.
        output_price: of a million output tokens.
    """

    name: str
    upstream: str
    send_as: str | None = None
    input_price: float = attrs.field(default=0.0, validator=_amount)
    output_price: float = attrs.field(default=0.0, validator=_amount)

    def matches(self, model: str) -> bool:
        """Tell whether it holds for a model."""
        return fnmatchcase(model, self.name)

    @property
    def is_pattern(self) -> bool:
        """Whether the name stands for many."""
        return any(sign in self.name for sign in "*?[")


@attrs.frozen(kw_only=True)
class Budget:
    """What may be used before requests are refused; None is no limit.

    Tokens are known after an answer, so what runs at that moment may go past the limit.

    Attributes:
        requests: that were let through.
        tokens: input and output together.
        money: by the prices of the model rules.
    """

    requests: int | None = attrs.field(default=None, validator=_amount)
    tokens: int | None = attrs.field(default=None, validator=_amount)
    money: float | None = attrs.field(default=None, validator=_amount)


@attrs.frozen(kw_only=True)
class ClientLimits:
    """What one container may take of the gateway, whatever is in it.

    Attributes:
        body_bytes: of a request.
        body_values: numbers, texts, names of members, lists and objects in a request's JSON.
        body_bytes_per_s: of all bodies on average; as many may come at once.
        large_bodies: of more than 64 KiB, read at once; more wait.
        held_bytes: of all requests at once; more are refused for the time being (429).
        answer_bytes: of an answer that does not stream, or of one event of a stream.
        connections: open at once; more are closed at once.
        connections_per_s: opened on average; more wait.
        refusals_per_s: requests that the gateway itself refuses, on average; the answers to more wait.
        concurrency: requests at once; more wait.
        client_s: seconds for a client to send a request's head, and again its body.
    """

    body_bytes: int = attrs.field(default=16 * MIB, validator=_positive)
    body_values: int = attrs.field(default=500_000, validator=_positive)
    body_bytes_per_s: float = attrs.field(default=8.0 * MIB, validator=_positive)
    large_bodies: int = attrs.field(default=2, validator=_positive)
    held_bytes: int = attrs.field(default=64 * MIB, validator=_positive)
    answer_bytes: int = attrs.field(default=32 * MIB, validator=_positive)
    connections: int = attrs.field(default=128, validator=_positive)
    connections_per_s: float = attrs.field(default=200.0, validator=_positive)
    refusals_per_s: float = attrs.field(default=10.0, validator=_positive)
    concurrency: int = attrs.field(default=32, validator=_positive)
    client_s: float = attrs.field(default=30.0, validator=_positive)


def _tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """Everything a gateway is told.

    Attributes:
        upstreams: who answers.
        models: the allow-list; what no rule matches is refused.
        budget: of the whole run; each seat may have one of its own beside it.
        limits: of one container.
        concurrency: requests at the upstreams at once, of all containers.
        retries: after the first attempt, on 408, 429, 5xx and lost connections.
        backoff_s: before the first retry, doubled for each more, with jitter; at most ``backoff_max_s``.
        backoff_max_s: the longest wait between two attempts that no ``Retry-After`` asked for.
        deadline_s: of a request with all its attempts, and of a whole stream.
        stall_s: without a byte from the upstream.
        grace_s: for the agents of a run to end by themselves once a budget is used up; then they are ended.
        log: file to which each exchange is added as a line of JSON.
        tokens: whether the log has each generated token with its log probability, of OpenAI's format.
        record: file to which each exchange is added so that ``replay:FILE`` can play it back.
    """

    upstreams: tuple[Upstream, ...] = attrs.field(converter=_tuple)
    models: tuple[ModelRule, ...] = attrs.field(converter=_tuple)
    budget: Budget = Budget()
    limits: ClientLimits = ClientLimits()
    concurrency: int = attrs.field(default=256, validator=_positive)
    retries: int = attrs.field(default=5, validator=_amount)
    backoff_s: float = attrs.field(default=0.5, validator=_positive)
    backoff_max_s: float = attrs.field(default=30.0, validator=_positive)
    deadline_s: float = attrs.field(default=900.0, validator=_positive)
    stall_s: float = attrs.field(default=180.0, validator=_positive)
    grace_s: float = attrs.field(default=15.0, validator=_positive)
    log: str | None = None
    tokens: bool = False
    record: str | None = None

    def __attrs_post_init__(self) -> None:
        """Check that names are unique and rules lead somewhere."""
        names = [upstream.name for upstream in self.upstreams]
        if len(set(names)) != len(names):
            raise SpecError("GatewayConfig.upstreams", names, "each name once")
        for rule in self.models:
            if rule.upstream not in names:
                raise SpecError("ModelRule.upstream", rule.upstream, f"one of {', '.join(names) or 'none'}")
        self._check_record()

    def _check_record(self) -> None:
        played = [os.path.realpath(upstream.replay) for upstream in self.upstreams if upstream.replay]
        if self.record is not None and os.path.realpath(self.record) in played:
            raise SpecError("GatewayConfig.record", self.record, "another file than the one that is replayed")

    def with_model(self, model: str) -> GatewayConfig:
        """Return a configuration in which a model answers, whatever model a request of its format names.

        Args:
            model: as the rules name it; ``openai/`` or ``anthropic/`` before it chooses the format.

        Raises:
            SpecError: no rule lets it be called.
        """
        prefix, _, rest = model.partition("/")
        wires: tuple[Wire, ...] = get_args(Wire) if prefix not in WIRES else (prefix,)
        name = rest if prefix in WIRES else model
        if prefix not in WIRES and name.startswith("claude"):
            wires = wires[::-1]
        for wire in wires if name else ():
            if found := self.rule_for(name, wire):
                rule = attrs.evolve(found[0], name="*", send_as=found[0].send_as or name)
                return attrs.evolve(self, models=(rule, *self.models))
        allowed = ", ".join(rule.name for rule in self.models)
        raise SpecError("model", model, f"one that the gateway's rules let through: {allowed}")

    def rule_for(self, model: str, wire: Wire) -> tuple[ModelRule, Upstream] | None:
        """Return the first rule that matches a model whose upstream speaks a format, with that upstream."""
        upstreams = {upstream.name: upstream for upstream in self.upstreams if upstream.wire == wire}
        for rule in self.models:
            if rule.upstream in upstreams and rule.matches(model):
                return rule, upstreams[rule.upstream]
        return None
