"""Answer a task with the recorded answer of a generation."""

import csv
import os

from utils.archive import get_score, load_archive


def ensemble(domain, row, folder, split):
    """Return the answer of the generation with the best score."""
    best, chosen = -1.0, None
    for genid in load_archive(folder):
        score = get_score(domain, folder, genid, split)
        if score is not None and score > best:
            best, chosen = score, genid
    name = f"{domain}_eval" + ("" if split == "train" else f"_{split}")
    with open(os.path.join(folder, f"gen_{chosen}", name, "predictions.csv"), newline="") as file:
        answers = {found["question_id"]: found["prediction"] for found in csv.DictReader(file)}
    return answers.get(row["question_id"], "")
