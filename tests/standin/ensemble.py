"""Answer a task with the recorded answer of a generation."""

import csv
import os

from utils.archive import evaluation, get_score, load_archive


def ensemble(domain, task, generate_output_dir, split="train"):
    """Return the answer of the generation with the best score in its report; None if it has
    none.
    """
    best, chosen = -1.0, None
    for genid in load_archive(generate_output_dir):
        score = get_score(domain, generate_output_dir, genid, split)
        if score is not None and score > best:
            best, chosen = score, genid
    path = os.path.join(
        generate_output_dir, f"gen_{chosen}", evaluation(domain, split), "predictions.csv"
    )
    with open(path, newline="") as file:
        answers = {found["question_id"]: found["prediction"] for found in csv.DictReader(file)}
    return answers.get(task["question_id"])
