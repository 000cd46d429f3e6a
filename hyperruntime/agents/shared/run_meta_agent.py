"""Run the meta agent on a repository and write its changes to ``<outdir>/model_patch.diff``."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import meta_agent

STOPS = getattr(meta_agent, "STOPS", ())  # errors that end the meta agent without a traceback


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default=None, help="name of a model; default: the agent's choice"
    )
    parser.add_argument(
        "--chat_history_file", default="", help="default: OUTDIR/meta_agent_chat_history.md"
    )
    parser.add_argument("--repo_path", default="./", help="the repository to change")
    parser.add_argument(
        "--evals_folder", default="", help="the folder of earlier generations and their scores"
    )
    parser.add_argument("--iterations_left", type=int, default=None)
    parser.add_argument(
        "--git_dir",
        default="",
        help="the git repository that computes the diff; default: REPO_PATH",
    )
    parser.add_argument("--base_commit", default="HEAD", help="the commit to compare with")
    parser.add_argument("--outdir", default="./outputs")
    return parser.parse_args(arguments)


def take_diff(work_tree, git_dir, base, outdir):
    """Return the diff of all changed and new files, without ignored files and bytecode.

    The index and the new objects are temporary, so the repository does not change.

    Args:
        work_tree: the changed files.
        git_dir: the git directory.
        base: the commit to compare with.
        outdir: a directory that is left out of the diff.
    """
    git = [
        "git",
        "-c",
        "safe.directory=*",
        "-c",
        "core.quotePath=false",
        f"--git-dir={git_dir}",
        f"--work-tree={work_tree}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        objects = subprocess.run(
            [*git, "rev-parse", "--git-path", "objects"],
            cwd=work_tree,
            check=True,
            capture_output=True,
        )
        environment = {
            **os.environ,
            "GIT_INDEX_FILE": str(Path(folder) / "index"),
            "GIT_OBJECT_DIRECTORY": str(Path(folder) / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(
                (Path(work_tree) / os.fsdecode(objects.stdout).strip()).resolve()
            ),
        }
        Path(folder, "objects").mkdir()

        def run(*command):
            return subprocess.run(
                [*git, *command], cwd=work_tree, env=environment, check=True, capture_output=True
            ).stdout

        run("read-tree", base)
        skipped = [":(exclude)**/__pycache__/**", ":(exclude)*.pyc"]
        if Path(outdir).is_relative_to(work_tree) and Path(outdir) != Path(work_tree):
            skipped.append(f":(exclude,literal){Path(outdir).relative_to(work_tree)}")
        run("add", "--all", "--", ".", *skipped)
        return run("diff", "--cached", "--binary", base)


def git_directory(path):
    """Return the git directory of a repository, or the path itself if it is a git directory."""
    inner = Path(path) / ".git"
    if inner.is_dir():
        return inner
    if inner.is_file():  # a linked work tree
        return (Path(path) / inner.read_text(encoding="utf-8").split(":", 1)[1].strip()).resolve()
    return Path(path)


def main(arguments=None):
    options = parse_arguments(arguments)
    repo, outdir = Path(options.repo_path).resolve(), Path(options.outdir).resolve()
    outdir.mkdir(parents=True, exist_ok=True)
    history = options.chat_history_file or str(outdir / "meta_agent_chat_history.md")
    try:
        meta_agent.MetaAgent(options.model, history).forward(
            str(repo), options.evals_folder, options.iterations_left
        )
        patch = take_diff(
            repo,
            git_directory(Path(options.git_dir or repo).resolve()),
            options.base_commit,
            outdir,
        )
        partial = outdir / "model_patch.diff.partial"
        partial.write_bytes(patch)
        shutil.move(partial, outdir / "model_patch.diff")
    except STOPS as error:  # such as a used-up budget
        print(f"the meta agent stopped: {error}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 - the exit code is the contract
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
