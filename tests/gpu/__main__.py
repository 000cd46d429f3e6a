"""Check a machine with one NVIDIA GPU in at most ten minutes, and print a table.

    scripts/gpu                  needs a GPU
    scripts/gpu --cpu            every step, small and on the CPU: it checks this program
    scripts/gpu --image NAME     an image with torch; default: made of this machine's files

Each step has a time limit of its own. What did not run is named, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.gpu.hostimage import write_context

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TOTAL_S = 600
SLOWER = 10  # without a GPU, the limits are only there so that the program ends
GOAL = 0.98
IMAGE = "gpu-check"
NEEDED = ("machine", "engine", "image")


class StepError(Exception):
    """A step that failed, in one sentence."""


@attrs.define
class Check:
    """The state of a check.

    Attributes:
        gpu: whether a GPU is used.
        image: the image that a user named, or "".
        work: a directory that is removed at the end.
        end: when all steps must have ended, as ``time.monotonic`` counts.
        engine: the engine that was chosen.
        missing: why the steps that follow cannot run, or "".
    """

    gpu: bool
    image: str
    work: Path
    end: float
    engine: str = ""
    missing: str = ""

    def hyperrun(self, *words: str, limit_s: float) -> str:
        """Return what ``hyperrun`` printed."""
        engine = ("--runtime", self.engine) if self.engine else ()
        return self.run(sys.executable, "-m", "hyperruntime", *engine, *words, limit_s=limit_s)

    def run(self, *args: str, limit_s: float) -> str:
        """Return what a program printed.

        Raises:
            StepError: it failed, or did not end in time.
        """
        limit_s = min(limit_s * (1 if self.gpu else SLOWER), self.end - time.monotonic())
        if limit_s <= 0:
            raise StepError("no time was left")
        try:
            done = subprocess.run(
                args, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise StepError(f"did not end within {limit_s:.0f} s") from None
        except OSError as error:
            raise StepError(f"{args[0]} cannot be run: {error.strerror}") from None
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise StepError(f"exit code {done.returncode}: {lines[-1] if lines else 'no output'}")
        return done.stdout

    def gpus(self) -> tuple[str, ...]:
        """The options that give a container the GPU."""
        return ("--gpus", "all") if self.gpu else ()


def main() -> int:
    """Run the steps; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/gpu", description="Check a machine with a GPU.")
    parser.add_argument("--cpu", action="store_true", help="every step, small and on the CPU")
    parser.add_argument("--image", default="", help="an image with torch")
    given = parser.parse_args()
    if not given.cpu and not _has_gpu():
        print("No GPU: `nvidia-smi -L` lists none here, so nothing was run.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hyperruntime-gpu-") as work:
        check = Check(
            gpu=not given.cpu,
            image=given.image,
            work=Path(work),
            end=time.monotonic() + TOTAL_S * (SLOWER if given.cpu else 1),
        )
        return 1 if [name for name, step in STEPS if not _passes(check, name, step)] else 0


def _has_gpu() -> bool:
    found = shutil.which("nvidia-smi")
    if found is None:
        return False
    try:
        said = subprocess.run(
            [found, "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return said.stdout.startswith("GPU ")


def _passes(check: Check, name: str, step: Callable[[Check], str]) -> bool:
    """Run a step, and print its row."""
    started = time.monotonic()
    if check.missing:
        result, detail = "NOT RUN", check.missing
    else:
        try:
            result, detail = "passed", step(check)
        except StepError as error:
            result, detail = "FAILED", str(error)
            check.missing = f"the step {name!r} failed" if name in NEEDED else ""
    print(f"{name:14} {result:8} {time.monotonic() - started:6.1f} s  {detail}", flush=True)
    return result == "passed"


def _machine(check: Check) -> str:
    torch = check.run(
        sys.executable,
        "-c",
        "import torch; print(f'torch {torch.__version__}, CUDA {torch.version.cuda}')",
        limit_s=60,
    ).strip()
    if not check.gpu:
        return f"no GPU is used, {torch}"
    return f"{check.run('nvidia-smi', '-L', limit_s=30).splitlines()[0].split(' (')[0]}, {torch}"


def _engine(check: Check) -> str:
    rows = json.loads(check.hyperrun("runtimes", "--json", limit_s=120))
    usable = [row for row in rows if row["usable"]]
    if not usable:
        raise StepError("no engine is usable: `hyperrun doctor` says what is missing")
    check.engine = usable[0]["runtime"]
    return ", ".join(f"{row['runtime']} {row['version']}" for row in usable)


def _image(check: Check) -> str:
    if check.image:
        check.hyperrun("exec", "--image", check.image, "--", "true", limit_s=60)
        return check.image
    context = check.work / "context"
    size = write_context(context)
    check.hyperrun("image", "build", IMAGE, "--file", str(context / "Dockerfile"), limit_s=180)
    shutil.rmtree(context)
    check.image = f"localhost/{IMAGE}:latest"
    return f"{check.image}, of this machine's files, {size / 1e9:.1f} GB"


def _doctor(check: Check) -> str:
    if not check.gpu:
        return _torch(check)
    said = check.hyperrun("doctor", "--gpu", check.image, "--json", limit_s=120)
    last = json.loads(said)["findings"][-1]
    return f"{last['subject']}: {last['detail']}"


def _torch(check: Check) -> str:
    program = "import torch; x = torch.ones(64, 64); assert (x @ x).sum() == 64 ** 3; print(torch.__version__)"
    args = ("exec", "--image", check.image, "--", "python3", "-c", program)
    return f"torch {check.hyperrun(*args, limit_s=120).strip()} in a container"


def _speedrun(check: Check) -> str:
    agent = check.work / "agent"
    shutil.copytree(ROOT / "examples/agents/scripted", agent)
    git = ("git", "-C", str(agent), "-c", "user.name=check", "-c", "user.email=check@example.org")
    for verb in (("init", "-q"), ("add", "--all"), ("commit", "-q", "-m", "agent")):
        check.run(*git, *verb, limit_s=30)
    domain = "speedrun:20,gpu" if check.gpu else "speedrun:20"
    words = ("generate", "--domains", domain, "--agent", str(agent), "--max-generation", "0")
    runs = str(check.work / "runs")
    where = ("--image", check.image, "--output-dir-parent", runs, *check.gpus())
    check.hyperrun(*words, *where, "--run-id", "gpu", limit_s=180)
    folder = (
        Path(runs) / f"generate_gpu/gen_initial/{domain.replace(':', '_').replace(',', '_')}_eval"
    )
    task = json.loads((folder / "report.json").read_text())["tasks"]["speedrun-train"]
    if not task["valid"]:
        raise StepError(task["detail"])
    return f"score {task['score']:.3f}, {task['detail']}"


def _rollout_train(check: Check) -> str:
    policy = f"{HERE / 'policy.py'}:{'Large' if check.gpu else 'Small'}"
    target = check.work / "train"
    words = ("rollout", "train", "--policy", policy, "--updates", "2", "--output-dir", str(target))
    check.hyperrun(*words, "--image", check.image, "--json", limit_s=180)
    rows = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    return f"{len(rows)} updates, mean reward {rows[-1]['metrics']['reward']:.2f}"


def _speed(check: Check) -> str:
    """Compare the tokens per second of one training inside and outside of a container."""
    program = (HERE / "tokens.py").read_text()
    size = ("large", "cuda") if check.gpu else ("small", "cpu")
    inside = ("exec", "--image", check.image, *check.gpus(), "--", "python3", "-c", program, *size)
    figures: dict[str, list[float]] = {"here": [], "inside": []}
    versions = set()
    weights = 0
    for _ in range(3):
        for place, said in (
            ("here", check.run(sys.executable, "-c", program, *size, limit_s=60)),
            ("inside", check.hyperrun(*inside, limit_s=60)),
        ):
            row = json.loads(said.strip().splitlines()[-1])
            figures[place].append(row["tokens_per_s"])
            versions.add(row["torch"])
            weights = row["weights"]
    here, contained = (statistics.median(figures[place]) for place in ("here", "inside"))
    text = (
        f"{contained:,.0f} tokens/s beside {here:,.0f} without a container: {contained / here:.3f}"
    )
    text += f", medians of 3, {weights / 1e6:,.0f} M weights, torch {', '.join(sorted(versions))}"
    if check.gpu and (len(versions) > 1 or contained / here < GOAL):
        raise StepError(f"{text}; the goal is {GOAL} with one version of torch")
    return text


STEPS: tuple[tuple[str, Callable[[Check], str]], ...] = (
    ("machine", _machine),
    ("engine", _engine),
    ("image", _image),
    ("doctor --gpu", _doctor),
    ("speedrun", _speedrun),
    ("rollout train", _rollout_train),
    ("tokens/s", _speed),
)

if __name__ == "__main__":
    sys.exit(main())
