"""Serve a policy as an OpenAI-compatible endpoint on loopback, in a separate thread.

With ``logprobs``, responses have log probabilities of the distribution at the requested
temperature, from which the tokens were drawn. With ``return_token_ids``, they have token ids in
vLLM's form: ``prompt_token_ids``, and ``token_ids`` of the choice.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import torch
from aiohttp import web

from hyperruntime.concurrency.bridge import Bridge
from hyperruntime.errors import TrainerError
from hypertrainer_grpo.policy import Policy
from hypertrainer_grpo.sampling import Drawn, draw

_START_S = 30.0


class PolicyServer:
    """A server of one policy.

    Attributes:
        url: base URL, which ends in ``/v1``. It contains a secret, so other users of the machine
            cannot send requests.
        version: version of the policy; responses return it as ``system_fingerprint``.
        lock: held while a turn is sampled; hold it to change the policy.
    """

    def __init__(self, policy: Policy, *, seed: int = 0) -> None:
        """Create a server; ``start`` starts it.

        Args:
            policy: the policy; its network may only change while ``lock`` is held.
            seed: seed for requests without a seed.
        """
        self.url = ""
        self.version = 0
        self._policy = policy
        self._generator = torch.Generator().manual_seed(seed)
        self.lock = threading.Lock()
        self._loop = Bridge("policy-server", lambda why: TrainerError(f"the policy's server {why}"))
        self._path = f"/{secrets.token_urlsafe(24)}/v1"
        app = web.Application()
        app.router.add_get(f"{self._path}/models", self._models)
        app.router.add_post(f"{self._path}/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None)

    def start(self) -> None:
        """Start the server.

        Raises:
            TrainerError: the server cannot start on loopback.
        """
        try:
            self._loop.run(self._serve(), _START_S)
        except OSError as error:
            raise TrainerError(
                f"the policy's server could not start on 127.0.0.1: {error}; start it again"
            ) from error

    def stop(self) -> None:
        """Stop the server after running requests are finished."""
        self._loop.run(self._runner.cleanup())
        self._loop.close()

    async def _serve(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}{self._path}"

    async def _models(self, _: web.Request) -> web.Response:
        one = {
            "id": self._policy.name,
            "object": "model",
            "owned_by": "hyperruntime",
            "max_model_len": self._policy.context,
        }
        return web.json_response({"object": "list", "data": [one]})

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
            prompt = self._policy.render(body["messages"], body.get("tools") or ())
            room = self._policy.context - len(prompt)
            most = min(
                int(body.get("max_completion_tokens") or body.get("max_tokens") or room), room
            )
            temperature = float(body.get("temperature", 1.0))
            seed = body.get("seed")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _refusal("invalid_request_error", f"the request is invalid: {error!r}") from error
        if body.get("stream") or body.get("n", 1) != 1:
            raise _refusal("unsupported", "this server supports neither stream nor n > 1")
        if room < 1:
            raise _refusal(
                "context_length_exceeded",
                f"maximum context length is {self._policy.context} tokens; the prompt has "
                f"{len(prompt)}",
            )
        with self.lock:
            generator = (
                self._generator
                if seed is None
                else torch.Generator().manual_seed(int(seed) % 2**63)
            )
            drawn = draw(
                self._policy.network,
                prompt,
                end_id=self._policy.end_id,
                most=most,
                temperature=temperature,
                generator=generator,
            )
            version = self.version
        return web.json_response(self._answer(body, prompt, drawn, version))

    def _answer(
        self, body: Mapping[str, Any], prompt: list[int], drawn: Drawn, version: int
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self._policy.text(drawn.ids)},
            "finish_reason": "stop" if drawn.ended else "length",
            "logprobs": None,
        }
        if body.get("logprobs"):
            pairs = zip(drawn.ids, drawn.logprobs, strict=True)
            choice["logprobs"] = {
                "content": [self._logprob(token, logprob) for token, logprob in pairs]
            }
        answer = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._policy.name,
            "system_fingerprint": f"policy-{version}",
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(drawn.ids),
                "total_tokens": len(prompt) + len(drawn.ids),
            },
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = drawn.ids
            answer["prompt_token_ids"] = prompt
        return answer

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._policy.text([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _refusal(code: str, message: str) -> web.HTTPBadRequest:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.HTTPBadRequest(text=json.dumps({"error": error}), content_type="application/json")
