"""Let an agent answer the rows of a table."""

import argparse
import csv
import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor

csv.field_size_limit(1 << 30)
COLUMNS = {"paper_review": ("paper_text",), "search_arena": ("messages_a", "messages_b")}


def load_agent(path):
    spec = importlib.util.spec_from_file_location("evaluated_agent", os.path.abspath(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TaskAgent


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent_path", default="./task_agent.py")
    parser.add_argument("--output_dir", default="./outputs")
    parser.add_argument("--run_id", default=None)
    parser.add_argument("--domain", required=True, choices=sorted(COLUMNS))
    parser.add_argument("--num_samples", type=int, default=-1)
    parser.add_argument("--save_interval", type=int, default=100)
    parser.add_argument("--num_workers", type=int, default=5)
    parser.add_argument("--resume_from", default=None)
    parser.add_argument("--subset", default="")
    args = parser.parse_args()
    sys.path.insert(0, os.getcwd())
    rows = read(f"./domains/{args.domain}/dataset{args.subset}.csv")
    rows = rows[: args.num_samples] if args.num_samples > 0 else rows
    folder = args.resume_from or os.path.join(args.output_dir, args.run_id or "run")
    os.makedirs(os.path.join(folder, "agent_evals"), exist_ok=True)
    path = os.path.join(folder, "predictions.csv")
    known = (
        {row["question_id"]: row["prediction"] for row in read(path)}
        if os.path.exists(path)
        else {}
    )
    made = load_agent(args.agent_path)

    def answer(row):
        name = row["question_id"]
        if known.get(name):
            return known[name]
        history = os.path.join(folder, "agent_evals", f"chat_history_{name}.md")
        inputs = {"domain": args.domain, **{column: row[column] for column in COLUMNS[args.domain]}}
        return made(model="gpt-4o", chat_history_file=history).forward(inputs)[0]

    with ThreadPoolExecutor(args.num_workers) as pool:
        answers = list(pool.map(answer, rows))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "prediction"])
        writer.writeheader()
        writer.writerows(
            {**row, "prediction": said} for row, said in zip(rows, answers, strict=True)
        )
    print(f"answered {len(rows)} rows")


if __name__ == "__main__":
    main()
