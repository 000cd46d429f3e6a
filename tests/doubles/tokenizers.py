"""Directories of models that have a tokenizer and a chat template, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{%- if tools %}# Tools {{ tools | tojson }}\n{% endif %}{%- for m in messages "
    "%}<|im_start|>{{ m.role }}\n{{ m.content }}{%- for c in m.tool_calls or [] %}<tool_call>{{ "
    "c.function.arguments.command }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if "
    "add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that makes each byte a token; return its directory.

    Args:
        folder: the directory, which must exist.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    built.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
