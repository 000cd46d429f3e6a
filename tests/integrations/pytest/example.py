"""The example of docs/integrations/pytest.md."""

# ruff: noqa: ANN001, ANN201 - as users write tests
# mypy: allow-untyped-defs

import pytest


def test_a_program_that_removes_its_directory(hyperruntime_container):
    container = hyperruntime_container
    container.write_file("clean.sh", b"rm -rf /workspace/*")
    container.exec(["sh", "clean.sh"]).check()
    assert container.listdir() == []


@pytest.mark.hyperruntime(network="none", limits={"memory_bytes": 64 * 1024**2})
def test_a_program_that_needs_too_much_memory(hyperruntime_container):
    result = hyperruntime_container.exec(["python3", "-c", "print(len(b'x' * 10**9))"])
    assert result.exit_code != 0


def test_two_machines(hyperruntime_containers):
    one, two = hyperruntime_containers(), hyperruntime_containers(env={"ROLE": "second"})
    assert two.exec(["sh", "-c", "echo $ROLE"]).stdout == b"second\n"
    assert one.exec(["sh", "-c", "echo $ROLE"]).stdout == b"\n"
