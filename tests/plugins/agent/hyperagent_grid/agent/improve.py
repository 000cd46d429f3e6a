"""Changes SIZE at random, and less after a generation whose circles overlapped."""

import argparse
import json
import os
import random
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("repo_path", "evals_folder", "chat_history_file"):
    parser.add_argument(f"--{name}", type=Path)
options, _ = parser.parse_known_args()

scores = {}
for report in sorted(options.evals_folder.glob("gen_*/circle_packing_eval/report.json")):
    scores[report.parts[-3]] = json.loads(report.read_text())["score"]

random.seed(os.environ["HYPERRUN_SEED"] + ":" + os.environ["HYPERRUN_GENERATION"])
file = options.repo_path / "size.py"
before = float(file.read_text().split("=")[1])
after = before * random.uniform(0.9, 1.1 if 0 in scores.values() else 1.6)
file.write_text(f"SIZE = {after}\n")
options.chat_history_file.write_text(
    f"Scores: {scores}. SIZE was {before:.3f} and is {after:.3f}.\n"
)
