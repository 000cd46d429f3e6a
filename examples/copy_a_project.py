"""Copy a directory into a container, work on it there, and take only what is wanted back."""

import tempfile
from pathlib import Path

import hyperruntime as hr

TEST = (
    "import unittest, calc\nclass T(unittest.TestCase):\n    def test(self): "
    "self.assertEqual(calc.add(2, 3), 5)\n"
)

with tempfile.TemporaryDirectory() as folder, hr.open_runtime() as runtime:
    project, results = Path(folder, "project"), Path(folder, "results")
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (project / "test_calc.py").write_text(TEST)
    (project / "link").symlink_to("/etc/passwd")

    with runtime.container(hr.ContainerSpec(image=runtime.images.ensure("base"))) as container:
        container.put(project, "/tmp/project")
        tests = container.exec(
            ["python3", "-m", "unittest", "-v"], workdir="/tmp/project", timeout_s=60
        )
        print("exit code of the tests:", tests.exit_code)
        container.exec(["sh", "-c", "mkdir /tmp/out && python3 -m compileall -q . && cp *.py /tmp/out"],
                       workdir="/tmp/project").check()  # fmt: skip
        container.get("/tmp/out", results)

    print("came back:", sorted(path.name for path in results.rglob("*") if path.is_file()))
