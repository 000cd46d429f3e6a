"""Run the meta agent once, and write the diff of its changes."""

import argparse
import os
import sys
import traceback

from meta_agent import MetaAgent
from utils.git import write_diff


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="anthropic/claude-sonnet-4-5-20250929")
    parser.add_argument("--chat_history_file", default="./outputs/chat_history.md")
    parser.add_argument("--repo_path", default="./")
    parser.add_argument("--evals_folder", default="./outputs/")
    parser.add_argument("--iterations_left", type=int, default=None)
    parser.add_argument("--git_dir", required=True)
    parser.add_argument("--base_commit", required=True)
    parser.add_argument("--outdir", default="./outputs/")
    args = parser.parse_args()
    os.makedirs(os.path.dirname(args.chat_history_file), exist_ok=True)
    agent = MetaAgent(model=args.model, chat_history_file=args.chat_history_file)
    agent.forward(
        repo_path=args.repo_path, eval_path=args.evals_folder, iterations_left=args.iterations_left
    )
    write_diff(args.git_dir, args.base_commit, args.outdir)


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(1)
