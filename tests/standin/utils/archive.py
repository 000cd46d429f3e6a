"""Read the files of a run."""

import json
import math
import os

FRACTION = dict.fromkeys(("paper_review", "search_arena"), 10 / 100)
KEY = dict.fromkeys(("paper_review", "search_arena"), "overall_accuracy")


def load_archive(folder):
    with open(os.path.join(folder, "archive.jsonl")) as file:
        return json.loads(file.read().splitlines()[-1])["archive"]


def load_metadata(folder, genid):
    try:
        with open(os.path.join(folder, f"gen_{genid}", "metadata.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def get_score(domain, folder, genid, split="train"):
    name = f"{domain}_eval" + ("" if split == "train" else f"_{split}")
    try:
        with open(os.path.join(folder, f"gen_{genid}", name, "report.json")) as file:
            value = json.load(file)[KEY[domain]]
    except (OSError, ValueError, KeyError):
        return None
    return None if math.isnan(value) else value


def get_saved_score(domain, folder, genid, split="train"):
    score = get_score(domain, folder, genid, split)
    if score is None:
        return None
    full = genid != "initial" and load_metadata(folder, genid).get("run_full_eval")
    return score if full else score * FRACTION[domain]
