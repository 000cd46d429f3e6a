"""Read the files of a run."""

import json
import math
import os

FRACTION = dict.fromkeys(("paper_review", "search_arena"), 10 / 100)
KEY = dict.fromkeys(("paper_review", "search_arena"), "overall_accuracy")


def load_archive(folder):
    """Return the generations in the last entry of the archive; a truncated entry raises an
    error.
    """
    with open(os.path.join(folder, "archive.jsonl")) as file:
        entries = file.read().strip().split("\n{")
    return [json.loads(entry if entry.startswith("{") else "{" + entry) for entry in entries][-1][
        "archive"
    ]


def load_metadata(folder, genid):
    try:
        with open(os.path.join(folder, f"gen_{genid}", "metadata.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def evaluation(domain, split):
    return f"{domain}_eval" if split == "train" else f"{domain}_eval_{split}"


def get_score(domain, folder, genid, split="train"):
    return _score_in(
        domain, os.path.join(folder, f"gen_{genid}", evaluation(domain, split), "report.json")
    )


def get_saved_score(domain, folder, genid, split="train", type="agent"):  # noqa: A002
    """Return the score of ``agent`` or ``ensemble``, or ``max``, the higher one; without a full
    evaluation, scaled.
    """
    ensemble = os.path.join(folder, f"gen_{genid}", f"report_ensemble_{domain}_{split}.json")
    found = {
        "agent": get_score(domain, folder, genid, split),
        "ensemble": _score_in(domain, ensemble),
    }
    known = [score for name, score in found.items() if score is not None and type in (name, "max")]
    if not known:
        return None
    full = genid != "initial" and load_metadata(folder, genid).get("run_full_eval")
    return max(known) if full else max(known) * FRACTION[domain]


def _score_in(domain, path):
    try:
        with open(path) as file:
            value = json.load(file)[KEY[domain]]
    except (OSError, ValueError, KeyError):
        return None
    return None if math.isnan(value) else value
