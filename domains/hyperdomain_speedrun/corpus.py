"""The text of the domain: paragraphs of a made-up language, written by a grammar.

There is as much of it as one wants. A paragraph returns to a few nouns and to one name, verbs agree
with their subjects, and words are not equally frequent, so a model must learn spelling, grammar,
and to look back.

The grammar and the seeds are public, so a program with this file in it computes the answers.
``HYPERRUNTIME_SPEEDRUN_SECRET`` is one more seed of the split ``test``, which no program can know.

Only ``random.Random.random`` is used: it gives the same numbers in every version of Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

ALPHABET = " .\nabcdefghijklmnopqrstuvwxyz"
CONTEXT = 64
TRAINING_CHARACTERS = 400_000
WINDOWS = 3000
SECRET_VARIABLE = "HYPERRUNTIME_SPEEDRUN_SECRET"  # noqa: S105 - a name
_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_COUNTS = {"nouns": 80, "verbs": 50, "adjectives": 40, "names": 30}


@lru_cache(maxsize=1)
def training_tokens() -> bytes:
    """Return the text for training; each byte is the place of a character in ``ALPHABET``."""
    text = ""
    for paragraph in _paragraphs(Random("text for training")):  # noqa: S311 - no secret
        text += paragraph
        if len(text) >= TRAINING_CHARACTERS:
            break
    return _tokens(text[:TRAINING_CHARACTERS])


def windows(split: str) -> tuple[bytes, bytes]:
    """Return what a model is asked about the text of a split: contexts and the tokens after them.

    Each window is of a paragraph of its own, so no context holds the answer to another one, nor
    the text that follows it.

    Args:
        split: name of the split.

    Returns:
        ``WINDOWS`` contexts of ``CONTEXT`` tokens, one after the other, and ``WINDOWS`` tokens.
    """
    secret = os.environ.get(SECRET_VARIABLE, "") if split == "test" else ""
    return _windows(f"text of the split {split}{secret}")


@lru_cache(maxsize=2)
def _windows(seed: str) -> tuple[bytes, bytes]:
    random = Random(seed)  # noqa: S311
    contexts = bytearray()
    answers = bytearray()
    for paragraph in _paragraphs(random):
        last = len(paragraph) - CONTEXT
        if last > 0:
            start = int(last * random.random())
            tokens = _tokens(paragraph[start : start + CONTEXT + 1])
            contexts += tokens[:-1]
            answers += tokens[-1:]
        if len(answers) == WINDOWS:
            break
    return bytes(contexts), bytes(answers)


def _tokens(text: str) -> bytes:
    return bytes(ALPHABET.index(character) for character in text)


def _paragraphs(random: Random) -> Iterator[str]:
    words = _lexicon()
    while True:
        name = _any(random, words["names"])
        topic = [_frequent(random, words["nouns"]) for _ in range(3)]
        sentences = [
            _sentence(random, words, name, topic) for _ in range(4 + int(4 * random.random()))
        ]
        yield " ".join(sentences) + "\n"


def _sentence(
    random: Random, words: dict[str, Sequence[str]], name: str, topic: Sequence[str]
) -> str:
    plural = random.random() < 0.4
    if random.random() < 0.35:
        plural = False
        parts = [name]
    else:
        parts = [_noun_phrase(random, words, topic, plural=plural)]
        if random.random() < 0.25:
            parts += ["that", _verb(random, words, plural=plural)]
            parts += [_noun_phrase(random, words, topic, plural=random.random() < 0.4)]
    parts.append(_verb(random, words, plural=plural))
    if random.random() < 0.7:
        parts.append(
            name
            if random.random() < 0.2
            else _noun_phrase(random, words, topic, plural=random.random() < 0.4)
        )
    return " ".join(parts) + "."


def _noun_phrase(
    random: Random, words: dict[str, Sequence[str]], topic: Sequence[str], *, plural: bool
) -> str:
    parts = ["the" if random.random() < 0.6 else "some" if plural else "a"]
    if random.random() < 0.3:
        parts.append(_frequent(random, words["adjectives"]))
    known = random.random() < 0.7
    noun = _any(random, topic) if known else _frequent(random, words["nouns"])
    return " ".join([*parts, noun + ("x" if plural else "")])


def _verb(random: Random, words: dict[str, Sequence[str]], *, plural: bool) -> str:
    return _frequent(random, words["verbs"]) + ("" if plural else "w")


def _any(random: Random, words: Sequence[str]) -> str:
    return words[int(len(words) * random.random())]


def _frequent(random: Random, words: Sequence[str]) -> str:
    """Return one of the words; the first ones are more frequent."""
    return words[int(len(words) * random.random() ** 2)]


def _lexicon() -> dict[str, Sequence[str]]:
    random = Random("words")  # noqa: S311
    made: dict[str, None] = {}
    while len(made) < sum(_COUNTS.values()):
        syllables = 2 + int(2 * random.random())
        word = "".join(_any(random, _CONSONANTS) + _any(random, _VOWELS) for _ in range(syllables))
        made[word] = None
    words = iter(made)
    return {kind: [next(words) for _ in range(count)] for kind, count in _COUNTS.items()}
