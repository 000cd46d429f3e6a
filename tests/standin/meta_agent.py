"""Edit the repository as a model says."""

import json
import os

from agent.llm import ask


class MetaAgent:
    def __init__(self, model, chat_history_file):
        self.model, self.chat_history_file = model, chat_history_file

    def forward(self, repo_path, eval_path, iterations_left):
        seen = sorted(os.listdir(eval_path)) if eval_path and os.path.isdir(eval_path) else []
        said = ask(
            self.model,
            [{"role": "user", "content": f"iterations left: {iterations_left}\nseen: {seen}"}],
        )
        with open(self.chat_history_file, "w") as file:
            file.write(f"# Edit\n\nearlier generations: {', '.join(seen)}\n\n{said}\n")
        for path, text in json.loads(said).get("append", {}).items():
            with open(os.path.join(repo_path, path), "a") as file:
                file.write(text)
