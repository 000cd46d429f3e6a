"""Errors of model servers as these servers document or send them: full contexts, and others that
resemble them.
"""

from __future__ import annotations

from typing import Any

Error = tuple[int, Any]  # status and body


def _openai(
    message: str, kind: str = "invalid_request_error", code: object = None, status: int = 400
) -> Error:
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _vllm(message: str) -> Error:
    return _openai(message, "BadRequestError", 400)


def _llama(message: str, status: int = 400, **numbers: int) -> Error:
    return status, {
        "error": {
            "code": status,
            "message": message,
            "type": "exceed_context_size_error",
            **numbers,
        }
    }


_TOKENS = "the messages have 5000 tokens"
TOO_LONG: dict[str, Error] = {
    "OpenAI": _openai(f"Maximum is 4096, but {_TOKENS}.", code="context_length_exceeded"),
    "OpenAI, words": _openai(
        "Your input exceeds the context window of this model. Please adjust your input."
    ),
    "vLLM 0.4": (
        400,
        {
            "object": "error",
            "message": f"This model's maximum context length is 4096 tokens. However, {_TOKENS}.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "vLLM, prompt": _vllm(
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096."
    ),
    "vLLM, max_tokens": _vllm(
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum "
        "context length is 8192 tokens and your request has 6000 input tokens (4096 > 8192 - "
        "6000)."
    ),
    "vLLM, fit": _vllm(
        "The prompt (total length 5000) is too long to fit into the model (context length 4096)."
    ),
    "llama.cpp": _llama(
        "request (5000 tokens) exceeds the available context size", n_prompt_tokens=5000, n_ctx=4096
    ),
    "llama.cpp, 500": _llama("the request exceeds the available context size", 500),
    "llama.cpp, numbers": (
        400,
        {"error": {"code": 400, "message": "no", "n_prompt_tokens": 5000, "n_ctx": 4096}},
    ),
    "llama.cpp, shift": (
        500,
        {"error": {"code": 500, "message": "context shift is disabled", "type": "server_error"}},
    ),
    "TGI": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 5000",
            "error_type": "validation",
        },
    ),
    "TGI, inputs": (
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4096 tokens.",
            "error_type": "validation",
        },
    ),
    "SGLang": _vllm(
        "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    ),
    "SGLang, sum": (
        400,
        {
            "object": "error",
            "message": "Requested token count exceeds the model's maximum context length of 4096 "
            "tokens.",
        },
    ),
    "Gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (5000) exceeds the maximum number of tokens "
                    "allowed (4096).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "Anthropic": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 5000 tokens > 4096 maximum",
            },
        },
    ),
    "Anthropic, sum": _openai(
        "input length and `max_tokens` exceed context limit: 4000 + 512 > 4096"
    ),
    "Anthropic, bytes": (
        413,
        {
            "type": "error",
            "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"},
        },
    ),
    "LiteLLM": _openai(
        "litellm.ContextWindowExceededError: litellm.BadRequestError: it is full", code="400"
    ),
    "Ollama": (400, {"error": "prompt too long; exceeded max context length by 904 tokens"}),
    "Ollama, 500": (
        500,
        {"error": {"message": "the input length exceeds the context length", "type": "api_error"}},
    ),
    "Mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 5000 tokens, too large for model with 4096 maximum context "
            "length",
            "type": "invalid_request_error",
            "code": "3051",
        },
    ),
    "Together": (
        422,
        {
            "error": {
                "message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4"
            }
        },
    ),
    "Fireworks": _openai("The prompt is too long: 5000, model maximum context length: 4095"),
    "Groq": _openai(
        "Please reduce the length of the messages or completion.", code="context_length_exceeded"
    ),
    "xAI": (
        400,
        {
            "code": "Client error",
            "error": "This model's maximum prompt length is 4096 but it has 5000 tokens",
        },
    ),
    "OpenRouter, 200": (
        200,
        {"error": {"code": 400, "message": "This endpoint's maximum context length is 4096"}},
    ),
    "LM Studio": (
        400,
        {
            "error": "The number of tokens to keep from the prompt is greater than the context "
            "length."
        },
    ),
    "Kimi": _openai(
        "Invalid request: Your request exceeded model token limit: 4096 (requested: 5000)"
    ),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "Qwen": _openai("Range of input length should be [1, 4096]"),
    "a proxy's text": (400, "upstream said: maximum context length is 4096 tokens"),
}
OTHERS: dict[str, Error] = {
    "a limit of the answer": _openai(
        "max_tokens is too large: 9. This model supports at most 8 completion tokens."
    ),
    "an unknown parameter": _openai(
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    ),
    "an unknown name": _openai("Unknown field context_length"),
    "a rate": _openai(
        "Request too large: tokens per min (TPM): Limit 4096, Requested 5000", "tokens", 413, 413
    ),
    "a throttle": (429, {"message": "Too many tokens, please wait before trying again."}),
    "a quoted conversation": (
        422,
        {
            "detail": [
                {
                    "type": "missing",
                    "msg": "Field required",
                    "input": "the maximum context length is exceeded",
                }
            ]
        },
    ),
    "a proxy's limit": (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    "OpenRouter, credits": (
        402,
        {
            "error": {
                "message": "Prompt tokens limit exceeded: 20000 > 9000. To increase, visit "
                "https://openrouter.ai/settings/credits and upgrade to a paid account",
                "code": 402,
            }
        },
    ),
    "OpenRouter, credits for the answer": (
        402,
        {
            "error": {
                "message": "This request requires more credits, or fewer max_tokens. You requested up "
                "to 4096 tokens, but can only afford 2000. To increase the context length, "
                "add credits; the maximum is exceeded",
                "code": 402,
            }
        },
    ),
    "credits, of a proxy": (
        400,
        {"error": {"message": "Prompt tokens limit exceeded: add credits", "code": "402"}},
    ),
    "credits, in an answer": (
        200,
        {"error": {"message": "Prompt tokens limit exceeded: add credits", "code": 402}},
    ),
    "a key": (
        401,
        {"error": {"message": "This key's maximum context length is 4096 tokens", "code": 401}},
    ),
    "a plan": (
        403,
        {"error": {"message": "maximum context length of your plan is exceeded", "code": 403}},
    ),
    "a wrong model": _openai("The model `x` does not exist", code="model_not_found", status=404),
}
