"""Answer a split with the ensemble, and print the path of the answers."""

import argparse
import csv
import os
from concurrent.futures import ThreadPoolExecutor

from domains.harness import read
from ensemble import ensemble

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--domain", required=True, choices=["paper_review", "search_arena"])
    parser.add_argument("--generate_output_dir", required=True)
    parser.add_argument("--num_samples", type=int, default=-1)
    parser.add_argument("--max_workers", type=int, default=5)
    parser.add_argument("--subset", default="train")
    args = parser.parse_args()
    rows = read(f"./domains/{args.domain}/dataset_filtered_100_{args.subset}.csv")
    rows = rows[: args.num_samples] if args.num_samples >= 0 else rows
    with ThreadPoolExecutor(args.max_workers) as pool:
        answers = list(pool.map(lambda row: ensemble(args.domain, row, args.generate_output_dir, args.subset), rows))
    predictions = os.path.join(args.generate_output_dir, f"predictions_ensemble_{args.domain}_{args.subset}.csv")
    with open(predictions, "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "prediction"])
        writer.writeheader()
        writer.writerows({**row, "prediction": said} for row, said in zip(rows, answers, strict=True))
    print(1.0)
    print(predictions)
    print(predictions.replace("predictions_", "report_").replace(".csv", ".json"))
