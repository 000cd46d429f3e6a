"""The values of a gateway's configuration: upstreams, model rules, budgets, limits."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from hyperruntime.errors import GatewayConfigError, SpecError
from hyperruntime.gateway.formats import FORMATS, WIRES
from hyperruntime.option_fields import ABOVE_ZERO, NOT_NEGATIVE, OneOf
from hyperruntime.secrets.env_file import parse_dotenv
from hyperruntime.units import MIB

REPLAY = "replay:"
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _without_user(url: str) -> str:
    return re.sub(r"//[^/]*@", "//...@", url)


@attrs.frozen(kw_only=True)
class Upstream:
    """A model server, or a file of recorded exchanges.

    Attributes:
        name: name that model rules refer to.
        url: base URL as clients of the server use it (``https://api.openai.com/v1``); or
            ``replay:FILE``.
        wire: the server's format; requests are passed through and never translated.
        key_env: name of the host's environment variable that holds the API key; None if there is
            none.
        key_file: file of the host that holds the API key; only without ``key_env``.
        key_name: name of the variable in ``key_file`` that is the key, for a ``.env`` file; None if
            the whole file is.
        proxy: URL of an HTTP proxy for this server; "" means none; None means that of the
            environment (``http_proxy``, ``https_proxy``, ``no_proxy``).
        token_ids: whether the server sends token ids on request, as vLLM does.

    Example:
        >>> upstream = hr.Upstream(name="lab", url="http://127.0.0.1:8000/v1", key_env="LAB_KEY")
        >>> upstream.wire
        'openai'
    """

    name: str
    url: str
    wire: str = attrs.field(default="openai", validator=OneOf(WIRES))
    key_env: str | None = None
    key_file: str | None = None
    key_name: str | None = None
    proxy: str | None = attrs.field(
        default=None, repr=lambda proxy: repr(_without_user(proxy or "") or None)
    )
    token_ids: bool = False

    def __attrs_post_init__(self) -> None:
        """Validate the fields."""
        if not _NAME.fullmatch(self.name):
            raise SpecError("Upstream.name", self.name, "letters, digits, '.', '_' and '-'")
        if not self.replay and not _URL.fullmatch(self.url):
            raise SpecError(
                "Upstream.url",
                _without_user(self.url),
                "http:// or https:// and a host without a user, or replay:FILE",
            )
        if self.key_env and self.key_file:
            raise SpecError("Upstream.key_file", self.key_file, "None if key_env is set")

    @property
    def replay(self) -> str:
        """The file of recorded exchanges; "" for a server."""
        return self.url.removeprefix(REPLAY) if self.url.startswith(REPLAY) else ""

    def check(self) -> None:
        """Check that the key and the recorded exchanges exist.

        Raises:
            GatewayConfigError: the key or the file of recorded exchanges does not exist, or the key
                is invalid.
        """
        self.load_key()
        if self.replay and not os.path.isfile(self.replay):
            raise GatewayConfigError(
                f"the file of recorded exchanges {self.replay} does not exist; record some first"
            )

    def load_key(self) -> str:
        """Return the API key from the host's environment or file; "" if the upstream has none.

        Raises:
            GatewayConfigError: the variable is not set; or the file cannot be read, or holds no
                printable key.
        """
        if self.key_env is not None:
            if key := os.environ.get(self.key_env, "").strip():
                return key
            raise GatewayConfigError(
                f"upstream {self.name!r} needs a key: set {self.key_env} in the environment"
            )
        if self.key_file is None:
            return ""
        try:
            text = Path(self.key_file).read_text()
            key = (
                text.strip() if self.key_name is None else parse_dotenv(text).get(self.key_name, "")
            )
        except (OSError, ValueError) as error:
            raise GatewayConfigError(
                f"the key of upstream {self.name!r} cannot be read: {error}; correct key_file"
            ) from error
        if not key or not key.isprintable():
            raise GatewayConfigError(
                f"{self.key_file} holds no printable key of upstream {self.name!r}; correct it"
            )
        return key


@attrs.frozen(kw_only=True)
class ModelRule:
    """Which models may be called, their upstream and their prices.

    The first rule whose name matches, and whose upstream speaks the format of the request, applies.

    Attributes:
        name: model name as the agent sends it; ``*``, ``?`` and ``[...]`` match as in file names.
        upstream: name of an upstream.
        send_as: model name for the upstream; None sends the agent's name.
        input_price: price of a million input tokens, in any currency.
        output_price: price of a million output tokens.

    Example:
        >>> rule = hr.ModelRule(name="gpt-*", upstream="lab", send_as="our-model")
        >>> rule.matches("gpt-4o"), rule.matches("claude")
        (True, False)
    """

    name: str
    upstream: str
    send_as: str | None = None
    input_price: float = attrs.field(default=0.0, validator=NOT_NEGATIVE)
    output_price: float = attrs.field(default=0.0, validator=NOT_NEGATIVE)

    def matches(self, model: str) -> bool:
        """Return whether the rule's name matches a model."""
        return fnmatchcase(model, self.name)

    @property
    def is_pattern(self) -> bool:
        """Whether the name is a pattern."""
        return any(sign in self.name for sign in "*?[")


@attrs.frozen(kw_only=True)
class Budget:
    """The usage after which requests are refused; None means no limit.

    Tokens are counted after an answer, so requests that run at that moment may exceed the limit.

    Attributes:
        requests: number of requests sent on.
        tokens: input and output tokens together.
        money: cost by the prices of the model rules.

    Example:
        >>> hr.Budget(requests=100, tokens=2_000_000).money is None  # no limit
        True
    """

    requests: int | None = attrs.field(default=None, validator=NOT_NEGATIVE)
    tokens: int | None = attrs.field(default=None, validator=NOT_NEGATIVE)
    money: float | None = attrs.field(default=None, validator=NOT_NEGATIVE)


@attrs.frozen(kw_only=True)
class ClientLimits:
    """Limits on one container's use of the gateway.

    Attributes:
        body_bytes: bytes in the body of a request.
        body_values: JSON values in the body of a request: numbers, texts, names of members, lists
            and objects.
        body_bytes_per_s: bytes per second of all bodies, on average; a burst may have as many bytes
            at once.
        large_bodies: bodies of more than 64 KiB that are read at once; further ones wait.
        held_bytes: bytes of all bodies at once; further requests are refused (429).
        answer_bytes: bytes in an answer that is not a stream, or in one event of a stream.
        connections: connections open at once; further ones are closed immediately.
        connections_per_s: new connections per second, on average; further ones wait.
        refusals_per_s: requests per second that the gateway refuses, on average; the answers to
            further ones wait.
        concurrency: requests at once; further ones wait.
        client_s: seconds for a client to send the head of a request, and again to send its body.
    """

    body_bytes: int = attrs.field(default=16 * MIB, validator=ABOVE_ZERO)
    body_values: int = attrs.field(default=500_000, validator=ABOVE_ZERO)
    body_bytes_per_s: float = attrs.field(default=8.0 * MIB, validator=ABOVE_ZERO)
    large_bodies: int = attrs.field(default=2, validator=ABOVE_ZERO)
    held_bytes: int = attrs.field(default=64 * MIB, validator=ABOVE_ZERO)
    answer_bytes: int = attrs.field(default=32 * MIB, validator=ABOVE_ZERO)
    connections: int = attrs.field(default=128, validator=ABOVE_ZERO)
    connections_per_s: float = attrs.field(default=200.0, validator=ABOVE_ZERO)
    refusals_per_s: float = attrs.field(default=10.0, validator=ABOVE_ZERO)
    concurrency: int = attrs.field(default=32, validator=ABOVE_ZERO)
    client_s: float = attrs.field(default=30.0, validator=ABOVE_ZERO)


@attrs.frozen(kw_only=True)
class GatewayConfig:
    """The configuration of a gateway.

    Attributes:
        upstreams: the model servers and files of recorded exchanges.
        models: the allow-list; a request that no rule matches is refused.
        budget: budget of the whole run; a seat may have its own in addition.
        limits: limits on each container.
        concurrency: requests at the upstreams at once, of all containers.
        retries: attempts after the first one, on 408, 409, 425, 429, 5xx, connection errors and
            broken answers.
        backoff_s: seconds before the first retry; doubled for each further one, with jitter.
        backoff_max_s: the longest wait in seconds between two attempts, unless ``Retry-After`` asks
            for more.
        deadline_s: seconds for a request with all its attempts, a stream to its end.
        stall_s: seconds to wait for a byte from the upstream.
        grace_s: seconds for a run's agents to end by themselves after a budget is used up; then
            they are ended.
        log: file to which each exchange is appended as a line of JSON; None for no log.
        tokens: whether the log has each generated token with its log probability (OpenAI's format
            only).
        record: file to which each exchange is appended for ``replay:FILE``; None for no recording.

    Example:
        >>> config = hr.GatewayConfig(
        ...     upstreams=[hr.Upstream(name="lab", url="http://127.0.0.1:8000/v1")],
        ...     models=[hr.ModelRule(name="*", upstream="lab")],
        ... )
        >>> rule, upstream = config.rule_for("any-model", "openai")
        >>> rule.name, upstream.name
        ('*', 'lab')
    """

    upstreams: tuple[Upstream, ...] = attrs.field(converter=tuple[Upstream, ...])
    models: tuple[ModelRule, ...] = attrs.field(converter=tuple[ModelRule, ...])
    budget: Budget = Budget()
    limits: ClientLimits = ClientLimits()
    concurrency: int = attrs.field(default=256, validator=ABOVE_ZERO)
    retries: int = attrs.field(default=5, validator=NOT_NEGATIVE)
    backoff_s: float = attrs.field(default=0.5, validator=ABOVE_ZERO)
    backoff_max_s: float = attrs.field(default=30.0, validator=ABOVE_ZERO)
    deadline_s: float = attrs.field(default=900.0, validator=ABOVE_ZERO)
    stall_s: float = attrs.field(default=180.0, validator=ABOVE_ZERO)
    grace_s: float = attrs.field(default=15.0, validator=ABOVE_ZERO)
    log: str | None = None
    tokens: bool = False
    record: str | None = None

    def __attrs_post_init__(self) -> None:
        """Check that names are unique, that each rule names an upstream, and that no replayed file
        is recorded to.
        """
        names = [upstream.name for upstream in self.upstreams]
        if len(set(names)) != len(names):
            raise SpecError("GatewayConfig.upstreams", names, "each name once")
        for rule in self.models:
            if rule.upstream not in names:
                raise SpecError(
                    "ModelRule.upstream", rule.upstream, f"one of {', '.join(names) or 'none'}"
                )
        played = [
            os.path.realpath(upstream.replay) for upstream in self.upstreams if upstream.replay
        ]
        if self.record is not None and os.path.realpath(self.record) in played:
            raise SpecError("GatewayConfig.record", self.record, "a file that is not replayed")

    def with_model(self, model: str) -> GatewayConfig:
        """Return a configuration in which one model answers all requests of its format.

        Args:
            model: model name that a rule matches; the name of a format and ``/`` before it choose
                the format, such as ``anthropic/``.

        Raises:
            SpecError: no rule matches the model.
        """
        prefix, _, rest = model.partition("/")
        name, wires = (rest, (prefix,)) if prefix in WIRES else (model, WIRES)
        # a vendor's model is asked for in the vendor's own format, if a server speaks it
        own_first = sorted(wires, key=lambda wire: not name.startswith(FORMATS[wire].own_models))
        for wire in own_first if name else ():
            if found := self.rule_for(name, wire):
                rule = attrs.evolve(found[0], name="*", send_as=found[0].send_as or name)
                return attrs.evolve(self, models=(rule, *self.models))
        allowed = ", ".join(rule.name for rule in self.models)
        raise SpecError("model", model, f"a model that the gateway's rules allow: {allowed}")

    def rule_for(self, model: str, wire: str) -> tuple[ModelRule, Upstream] | None:
        """Return the first rule that applies, with its upstream; None if the model is not allowed.

        Args:
            model: model name as the client sends it.
            wire: format of the request, which the upstream must speak.
        """
        upstreams = {
            upstream.name: upstream for upstream in self.upstreams if upstream.wire == wire
        }
        for rule in self.models:
            if rule.upstream in upstreams and rule.matches(model):
                return rule, upstreams[rule.upstream]
        return None
