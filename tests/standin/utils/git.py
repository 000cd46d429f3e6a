"""Write the diff of a work tree."""

import os
import subprocess


def git(git_dir, *args, codes=(0,)):
    result = subprocess.run(
        ["git", "-C", git_dir, *args], capture_output=True, text=True, check=False
    )
    if result.returncode not in codes:
        raise RuntimeError(f"git {args[0]}: {result.stderr}")
    return result.stdout


def write_diff(git_dir, base_commit, outdir):
    """Restore domains/, then write the diff of everything else, including new files."""
    git(git_dir, "checkout", base_commit, "--", "domains/")
    git(git_dir, "clean", "-fd", "--", "domains/")
    diff = git(git_dir, "diff", base_commit)
    for name in git(git_dir, "ls-files", "--others", "--exclude-standard").splitlines():
        diff += git(git_dir, "diff", "--no-index", "/dev/null", name, codes=(0, 1))
    with open(os.path.join(outdir, "model_patch.diff"), "w") as file:
        file.write(diff)
