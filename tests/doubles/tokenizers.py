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
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # In a vocabulary of bytes each has a letter, its own one where that can be seen; then they are
    # in the order of :class:`~tests.doubles.byte_tokenizer.ByteTokenizer`.
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    letters |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    marks = ("<|im_start|>", "<|im_end|>")
    built.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    built.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
