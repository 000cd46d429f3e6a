"""Agents of smolagents whose code runs in our containers."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from smolagents import AgentError, ChatMessage, CodeAgent, FinalAnswerTool, Model, tool

import hyperruntime as hr
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime_smolagents import Executor
from hyperruntime_smolagents.answers import read_answer
from tests.integrations.smolagents.example import ask

pytestmark = pytest.mark.engine


@tool
def double(number: int) -> int:
    """Return twice a number.

    Args:
        number: the number.
    """
    return 2 * number


class ScriptedModel(Model):
    """A model that says the code that a test names."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._texts = iter(texts)
        self.seen: list[str] = []

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        """Return the next code."""
        self.seen.append(str(messages[-1]))
        return ChatMessage(
            role="assistant", content=f"Thought: go on.\n<code>\n{next(self._texts)}\n</code>"
        )


@pytest.fixture
def executor(runtime_name: str, base_image: str) -> Iterator[Executor]:
    made = Executor(base_image, runtime=runtime_name)
    made.send_tools({"final_answer": FinalAnswerTool(), "double": double})
    yield made
    made.cleanup()


def test_an_agent_computes_in_the_container(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch, with_memory_limit: Any
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    model = ScriptedModel(
        "import json\nhere = [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:]\n"
        "number = double(21)\nprint('seen', number)",
        "undefined",
        "final_answer({'number': number, 'here': here})",
    )
    with with_memory_limit:
        answer = ask(model, [double], "compute")
        assert answer == {"number": 42, "here": ["lo"]}
        assert "seen 42" in model.seen[1]
        assert "NameError: name" in model.seen[2]


def test_an_agent_runs_again_and_is_given_variables(executor: Executor) -> None:
    model = ScriptedModel("final_answer(double(given['one']))", "final_answer(given['one'] + 1)")
    agent = CodeAgent(tools=[double], model=model, executor=executor)
    assert agent.run("first", additional_args={"given": {"one": 1}}) == 2
    assert agent.run("second", additional_args={"given": {"one": 5}}) == 6


def test_outputs_are_those_of_a_notebook(executor: Executor) -> None:
    write = "print('out')\nprint('err', file=sys.stderr)\nsubprocess.run(['echo', 'child'])"
    done = executor(f"import subprocess, sys\n{write}\nx = [1]\nx")
    assert (done.output, done.is_final_answer) == ("[1]", False)
    assert sorted(done.logs.split()) == ["child", "err", "out"]
    assert executor("x.append(2)").output is None
    assert executor("def f(a):\n    return a + x\nf([0])").output == "[0, 1, 2]"
    assert executor("").output is None
    assert executor("print('no newline', end='')").logs == "no newline"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("def broken():\n    return 1 / 0\nbroken()", "line 3, in broken\n    return 1 / 0\n"),
        ("x = = 1", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("input()", "EOFError"),
        ("final_answer(object())", "Cannot safely serialize object of type object"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_errors_are_told_and_variables_stay(executor: Executor, code: str, word: str) -> None:
    executor("kept = 1")
    with pytest.raises(AgentError) as caught:
        executor("print('before')\n" + code if "= =" not in code else code)
    assert word in str(caught.value)
    assert "python_loop" not in str(caught.value)
    assert executor("kept").output == "1"


def test_what_was_printed_before_an_error_is_kept(executor: Executor) -> None:
    with pytest.raises(AgentError):
        executor("print('before')\n1 / 0")
    assert executor.state["_print_outputs"] == "before\n"


def test_answers_come_back_with_their_types(executor: Executor) -> None:
    said = "(1, {2: b'x'}, {'é', 'ö'}, datetime.date(2026, 1, 2), 1.5, None)"
    done = executor(f"import datetime\nfinal_answer({said})")
    assert done.is_final_answer
    assert done.output == (1, {2: b"x"}, {"é", "ö"}, dt.date(2026, 1, 2), 1.5, None)


def test_a_step_that_does_not_end_is_interrupted_and_its_variables_stay(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime_smolagents.python_kernel._INTERRUPT_S", 2.0)
    executor = Executor(base_image, runtime=runtime_name, timeout_s=2)
    try:
        executor.send_variables({"given": 7})
        with pytest.raises(AgentError, match="interrupted after 2 s; its variables stay"):
            executor(
                "kept = 1\nprint('before', flush=True)\nimport time\nwhile True: time.sleep(0.1)"
            )
        assert executor.state["_print_outputs"].startswith("before\n")
        assert executor("kept").output == "1"
        stubborn = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        with pytest.raises(AgentError, match="its variables are lost"):
            executor(stubborn)
        # what the agent sent is there again
        assert executor("'kept' in dir(), given").output == "(False, 7)"
    finally:
        executor.cleanup()


def test_a_process_that_ends_is_replaced_with_tools_and_variables(executor: Executor) -> None:
    executor.send_variables({"given": 20})
    with pytest.raises(AgentError, match="ended with exit code 9"):
        executor("import os; os._exit(9)")
    done = executor("final_answer(double(given))")
    assert (done.output, done.is_final_answer) == (40, True)


WIDE_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)
WIDE_PNG += struct.pack(">I", zlib.crc32(WIDE_PNG[12:]))
HOSTILE_ANSWERS = (
    "pickle:gASVBQAAAAAAAACMAXiULg==",
    "gASVBQAAAAAAAACMAXiULg==",
    "safe:" + "[" * 100000,
    'safe:{"__type__": "complex"}',
    'safe:{"__type__": "Decimal", "data": []}',
    'safe:{"__type__": "ndarray", "data": ["a"], "dtype": "S300000000"}',
    'safe:[{"a": {"__type__": "ndarray", "data": ["a"], "dtype": "U30000000"}}]',
    'safe:{"__type__": "PIL.Image", "data": "UDYKMSAxCjI1NQr///8="}',  # a whole image, but no PNG
    "safe:" + json.dumps({"__type__": "PIL.Image", "data": base64.b64encode(WIDE_PNG).decode()}),
    "safe:"
    + json.dumps({"__type__": "set", "data": [number * (2**61 - 1) for number in range(10_001)]}),
)


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS, ids=range(len(HOSTILE_ANSWERS)))
def test_an_answer_in_another_form_is_refused(executor: Executor, answer: str) -> None:
    with pytest.raises(AgentError, match="form"):
        executor(
            "class FinalAnswerException(BaseException): pass\nraise "
            f"FinalAnswerException({answer!r})"
        )
    assert executor("1").output == "1"


def test_an_answer_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 500000 values"):
        read_answer("safe:[" + "[]," * 1_000_000 + "0]")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * 1024**2


def test_images_and_arrays_of_numbers_come_back() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2)).save(stream, format="PNG")
    answer = {"__type__": "PIL.Image", "data": base64.b64encode(stream.getvalue()).decode()}
    array = {"__type__": "ndarray", "data": [[1, 2], [3, 4]], "dtype": "int64"}
    image, numbers = read_answer("safe:" + json.dumps([answer, array]))
    assert image.size == (3, 2)
    assert [list(row) for row in numbers] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "reply", [b"[" * 9999 + b"\n", b"{}\n", b"\xff\n", b'{"output": "forged", "more": 1}\n']
)
def test_a_forged_reply_harms_only_its_container(executor: Executor, reply: bytes) -> None:
    forge = (
        "import os\nfor number in range(3, 20):\n    try: os.write(number, {!r})\n    except "
        "OSError: pass"
    )
    with pytest.raises(AgentError, match="its variables are lost"):
        executor(forge.format(reply))
    assert executor("double(2)").output == "4"


def test_much_output_is_cut_in_the_middle(executor: Executor) -> None:
    done = executor("print('first')\nprint('x' * 5_000_000)\nprint('last')")
    assert done.logs.startswith("first\n")
    assert done.logs.endswith("last\n")
    assert len(done.logs) < 2_000_000


def test_packages_that_the_image_lacks_are_refused_by_name(
    runtime_name: str, base_image: str
) -> None:
    with pytest.raises(UnsupportedOptionError, match=r"no no-such-package==1\.0"):
        Executor(base_image, ["json", "no-such-package==1.0"], runtime=runtime_name)


def test_an_image_without_python_is_refused_by_name(
    runtime_name: str, busybox_image: str, base_image: str
) -> None:
    if busybox_image != base_image:  # else the engine supports only one image
        with pytest.raises(UnsupportedOptionError, match="Python 3"):
            Executor(busybox_image, runtime=runtime_name)


def test_an_agent_among_the_tools_is_refused_by_name(executor: Executor) -> None:
    other = CodeAgent(tools=[], model=ScriptedModel(), name="other", description="another agent")
    with pytest.raises(UnsupportedOptionError, match="other"):
        CodeAgent(tools=[], model=ScriptedModel(), managed_agents=[other], executor=executor).run(
            "x"
        )


def test_a_mount_is_seen_by_the_code(runtime_name: str, base_image: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "given").write_text("from the host")
    mounts = [hr.Mount(source=str(tmp_path), target="/in")]
    executor = Executor(base_image, runtime=runtime_name, container={"mounts": mounts})
    assert executor("print(open('/in/given').read())").logs == "from the host\n"
    executor.cleanup()
