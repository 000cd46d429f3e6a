"""Score answers that are programs: each runs in a fresh container, and the host compares what it
prints.
"""

from concurrent.futures import ThreadPoolExecutor

import hyperruntime as hr

ANSWERS = {
    "right": "print(sum(int(word) for word in input().split()))",
    "wrong": "print(len(input().split()))",
    "endless": "while True: pass",
    "broken": "print(",
    "cheats": "import os; print(os.environ.get('EXPECTED', 'none')); raise SystemExit(0)",
}
CASES = {b"1 2 3\n": b"6", b"10 -4\n": b"6", b"7\n": b"7"}


def grade(runtime: hr.Runtime, image: str, program: str) -> float:
    """Return the share of the cases that a program solves."""
    with runtime.container(hr.ContainerSpec(image=image, limits=hr.Limits(pids=32))) as container:
        solved = 0
        for given, expected in CASES.items():
            result = container.exec(["python3", "-I", "-c", program], input=given, timeout_s=2)
            solved += result.exit_code == 0 and result.stdout.strip() == expected
        return solved / len(CASES)


with hr.open_runtime() as runtime, ThreadPoolExecutor(5) as threads:
    image = runtime.images.ensure("base")
    scores = dict(
        zip(
            ANSWERS,
            threads.map(lambda text: grade(runtime, image, text), ANSWERS.values()),
            strict=True,
        )
    )

for name, score in scores.items():
    print(f"{name}: {score:.2f}")
