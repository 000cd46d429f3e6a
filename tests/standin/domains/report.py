"""Score the answers in a directory."""

import argparse
import csv
import json
import os
from collections import Counter

csv.field_size_limit(1 << 30)
LABEL = {"paper_review": "outcome", "search_arena": "winner"}


def judge(rows, label):
    good = [row["prediction"].strip().lower() == row[label].strip().lower() for row in rows]
    labels = Counter(row[label] for row in rows)
    by_label = {}
    for name, total in sorted(labels.items()):
        correct = sum(ok for row, ok in zip(rows, good, strict=True) if row[label] == name)
        said = sum(row["prediction"] == name for row in rows)
        by_label[name] = {
            "precision": correct / said if said else 0.0,
            "recall": correct / total,
            "correct": correct,
            "total": total,
        }
    return {
        "overall_accuracy": sum(good) / len(rows),
        "total_correct": sum(good),
        "total": len(rows),
        "accuracy_by_ground_truth": by_label,
        "label_distribution": {
            "ground_truth": dict(labels),
            "prediction": Counter(row["prediction"] for row in rows),
        },
        "random_guess_accuracy": 1 / len(labels),
        "question_ids_failed": [
            row["question_id"] for row, ok in zip(rows, good, strict=True) if not ok
        ],
        "question_ids_passed": [
            row["question_id"] for row, ok in zip(rows, good, strict=True) if ok
        ],
    }


def report(dname, domain, suffix=""):
    """Write the report on ``predictions<suffix>.csv``; return it and its path."""
    with open(os.path.join(dname, f"predictions{suffix}.csv"), newline="") as file:
        value = judge(list(csv.DictReader(file)), LABEL[domain])
    path = os.path.join(dname, f"report{suffix}.json")
    with open(path, "w") as file:
        json.dump(value, file, indent=4)
    return value, path


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dname", required=True)
    parser.add_argument("--domain", required=True, choices=sorted(LABEL))
    args = parser.parse_args()
    report(args.dname, args.domain)
