"""Evolve an agent from Python: three generations of the template that needs no model, and their
scores.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    # -P: the current directory has no code
    hyperrun = [sys.executable, "-P", "-m", "hyperruntime.cli"]
    options = [
        "--domains",
        "circle_packing",
        "--max-generation",
        "3",
        "--seed",
        "4",
        "--parallel",
        "2",
    ]
    subprocess.run(
        [*hyperrun, "generate", *options, "--run-id", "example", "--output-dir-parent", folder],
        check=True,
    )

    run = Path(folder, "generate_example")
    records = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    for record in records:
        print(
            f"generation {record['current_genid']}, a child of {record['parent_genid']}: "
            f"{record['score']}"
        )
    best = max(
        (record for record in records if record["score"] is not None),
        key=lambda record: record["score"],
    )
    print("the best generation is", best["current_genid"])

    subprocess.run([*hyperrun, "export", str(run), "best", str(Path(folder, "agent"))], check=True)
    print("exported:", sorted(path.name for path in Path(folder, "agent").glob("*.py")))
