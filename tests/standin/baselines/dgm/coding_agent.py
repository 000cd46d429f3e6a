"""Solve a stated problem by editing the repository: one call of a model."""

import argparse
import json
import os

from agent.llm import ask
from utils.git import write_diff


class CodingAgent:
    def __init__(self, problem_statement, git_dir, base_commit, chat_history_file, outdir):
        self.problem_statement, self.git_dir, self.base_commit = (
            problem_statement,
            git_dir,
            base_commit,
        )
        self.chat_history_file, self.outdir = chat_history_file, outdir

    def forward(self):
        said = ask(
            "coder", [{"role": "user", "content": f"iterations left: 1\n{self.problem_statement}"}]
        )
        with open(self.chat_history_file, "w") as file:
            file.write(f"# Problem\n\n{self.problem_statement}\n\n{said}\n")
        for path, text in json.loads(said).get("append", {}).items():
            with open(os.path.join(self.git_dir, path), "a") as file:
                file.write(text)
        write_diff(self.git_dir, self.base_commit, self.outdir)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("problem_statement", "git_dir", "base_commit", "chat_history_file", "outdir"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    os.makedirs(args.outdir, exist_ok=True)
    CodingAgent(**vars(args)).forward()
