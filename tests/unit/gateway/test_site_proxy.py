"""Model servers are asked through the proxy of the site, which variables of the environment
name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway import Gateway, GatewayConfig, ModelRule, Upstream
from hyperruntime.ports.site_proxy import site_proxy
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.models.server import Server
from tests.doubles.site_proxy import run_site_proxy
from tests.doubles.upstream import chat, scripted_upstream
from tests.unit.gateway.rig import ask

NAMES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_model_server_that_only_the_proxy_of_the_site_reaches_is_asked_through_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_upstream(lambda _: chat("hello")) as upstream:
        port = urlsplit(upstream.url).port
        assert port is not None
        with run_site_proxy({"models.invalid:8000": port}) as proxy:
            monkeypatch.setenv(name, proxy.url)
            url = "http://models.invalid:8000/v1"
            config = GatewayConfig(
                upstreams=(Upstream(name="far", url=url), Upstream(name="here", url=upstream.url)),
                models=(
                    ModelRule(name="far", upstream="far"),
                    ModelRule(name="here", upstream="here"),
                ),
            )
            with Gateway(config) as gateway:
                seat = gateway.seat("gen-1", str(tmp_path))
                assert ask(seat, {"model": "here"})[0] == 200
                assert proxy.asked == []
                assert ask(seat, {"model": "far"})[0] == 200
            assert proxy.asked == ["models.invalid:8000"]

            async def asked() -> None:
                server = Server(ModelOptions(name="m", base_url=url))
                await server.check()
                await server.post(f"{url}/chat/completions", "/v1/chat/completions", {})
                await server.close()

            asyncio.run(asked())
            assert proxy.asked == ["models.invalid:8000"] * 3
    assert [received.path for received in upstream.received].count("/v1/chat/completions") == 3


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "http://models.org/v1", None),
        ({"http_proxy": "http://p:1"}, "http://models.org/v1", "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, "http://models.org/v1", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "https://models.org/v1", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://models.org/v1", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "models.org"}, "http://models.org:8000", None),
        ({"http_proxy": "http://p:1", "NO_PROXY": ".site"}, "http://node7.site:8000", None),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "http://10.1.2.3:8000", None),
        ({"http_proxy": "http://p:1", "no_proxy": "a,10.0.0.0/8"}, "http://11.1.2.3", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "http://models.org", None),
        ({"http_proxy": "http://p:1", "no_proxy": "x.org:80"}, "http://x.org:81", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "x.org:80"}, "http://X.org:80", None),
        ({"http_proxy": "http://p:1", "no_proxy": "x.org"}, "http://notx.org", "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": ""}, "http://models.org", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "http://127.0.0.1:8000/v1", None),
        ({"http_proxy": "http://p:1"}, "http://localhost:8000/v1", None),
        ({"http_proxy": "http://p:1"}, "http://[::1]:8000/v1", None),
    ],
)
def test_the_variables_say_which_address_is_asked_through_the_proxy(
    environ: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert site_proxy(url) == proxy


def test_a_proxy_of_another_kind_is_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "socks5://p:1")
    with pytest.raises(GatewayConfigError, match=r"https_proxy.*or models\.org in no_proxy"):
        site_proxy("https://models.org/v1")
