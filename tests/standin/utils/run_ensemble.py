"""Answer a subset with the ensemble, score the answers, and print the score and both paths.

Every error ends in three lines ``None`` and exit code 0, as in HyperAgents.
"""

import argparse
import csv
import os
from concurrent.futures import ThreadPoolExecutor

from domains.harness import COLUMNS, read
from domains.report import report
from ensemble import ensemble


def score(domain, folder, num_samples, max_workers, subset):
    """Return the score, the path of the answers and the path of the report; None for each after an
    error.
    """
    try:
        rows = read(f"./domains/{domain}/dataset{subset}.csv")
        rows = rows[:num_samples] if num_samples > 0 else rows
        split = subset.split("_")[-1]

        def answer(row):
            task = {name: row[name] for name in ("question_id", *COLUMNS[domain])}
            try:
                return ensemble(domain, task, folder, split=split)
            except Exception as error:  # noqa: BLE001
                print(f"row {row['question_id']} has no answer: {error}")
                return None

        with ThreadPoolExecutor(max_workers) as pool:
            answers = list(pool.map(answer, rows))
        suffix = f"_ensemble_{domain}_{split}"
        path = os.path.join(folder, f"predictions{suffix}.csv")
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "prediction"])
            writer.writeheader()
            writer.writerows(
                {**row, "prediction": said} for row, said in zip(rows, answers, strict=True)
            )
        value, report_path = report(folder, domain, suffix)
        return value["overall_accuracy"], path, report_path
    except Exception as error:  # noqa: BLE001
        print(f"no score: {error}")
        return None, None, None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--domain", required=True, choices=["search_arena", "paper_review"])
    parser.add_argument("--generate_output_dir", required=True)
    parser.add_argument("--num_samples", type=int, default=-1)
    parser.add_argument("--max_workers", type=int, default=5)
    parser.add_argument("--subset", default="_filtered_100_train")
    args = parser.parse_args()
    for line in score(
        args.domain, args.generate_output_dir, args.num_samples, args.max_workers, args.subset
    ):
        print(line)
