"""One Dockerfile gives the same image on every engine, as `docker build` documents it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import SpecError
from hyperruntime.host.process import run_process
from hyperruntime.layers.store import Store
from tests.contract.builds import built

pytestmark = pytest.mark.engine
REFERENCE = "localhost/hyperruntime-test-dockerfile:latest"

DOCKERFILE = r"""
ARG VERSION=1.2 BASE={base}
FROM ${{BASE}}
RUN echo "[${{VERSION}}]" > /args
ARG VERSION
ARG NONE GIVEN=default
RUN echo "[$VERSION][${{NONE-unset}}][$GIVEN]" >> /args
ARG WITH=${{VERSION}}-$GIVEN
ENV KEPT=${{WITH}} URL=http://h/x?a=b&c=d#e
ENV JSON={{"a":1}} GLOB=*.py COST=$5(each)
ENV OLD some  "text" with (brackets) and \'quotes\'
ENV PATH="/opt/x/bin:${{PATH}}" LATER=$OLD OLD=new SAME=$OLD
ENV DEF="${{NOTSET:-fall back}}" ALT=${{OLD:+yes}} PRE=$HOME/.cache A=one\ two B=x\
C
ARG OLD=argument
COPY --link . /src
COPY --link --chmod=a+rX,go-w app run.sh "/modes/"
COPY --chmod=700 run.sh /run7
RUN chmod +x /src/run.sh && . /src/run.sh >> /args
"""
FILES = {
    ".dockerignore": "# comment\n.git\nsecret.*\n!secret.keep\n**/cache\nlogs/*\n!logs/last\n",
    ".git/config": "x",
    "secret.txt": "key",
    "secret.keep": "k",
    "app/main.py": "1",
    "app/cache/a": "x",
    "logs/old": "x",
    "logs/last": "x",
    "run.sh": "echo $OLD",
}
SHOW = """cat /args
printf '%s|' "$KEPT" "$URL" "$JSON" "$GLOB" "$COST" "$LATER" "$OLD" "$SAME" "$DEF" "$ALT" "$PRE" "$A" "$B"
case $PATH in /opt/x/bin:/*) echo path;; *) echo "$PATH";; esac
env | grep -E '^(VERSION|WITH|GIVEN|NONE)='
cd /src && find . -type f | grep -v ocker | sort
stat -c '%a %u %n' /modes /modes/* /run7"""
SEEN = r"""[]
[1.2][unset][given]
new
1.2-given|http://h/x?a=b&c=d#e|{a:1}|*.py|(each)|some  text with (brackets) and 'quotes'|new|"""
SEEN += """some  text with (brackets) and 'quotes'|fall back|yes|/.cache|one two|xC|path
./app/main.py
./logs/last
./run.sh
./secret.keep
755 0 /modes
644 0 /modes/main.py
644 0 /modes/run.sh
700 0 /run7
"""


@pytest.fixture
def dockerfile(odd_path: Path, base_image: str) -> Path:
    """A Dockerfile and its context."""
    for name, text in FILES.items():
        path = odd_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o666)
    path = odd_path / "Dockerfile"
    path.write_text(DOCKERFILE.format(base=base_image))
    return path


def test_a_dockerfile_gives_the_same_image_on_every_engine(
    runtime: hr.Runtime, dockerfile: Path
) -> None:
    with built(runtime, REFERENCE, dockerfile, build_args={"GIVEN": "given"}) as started:
        seen = started.exec(["sh", "-c", SHOW])
    assert seen.stdout.decode() == SEEN, seen.stderr


def test_a_mode_that_no_builder_knows_is_refused_with_its_line(
    runtime: hr.Runtime, dockerfile: Path
) -> None:
    dockerfile.write_text(dockerfile.read_text().replace("a+rX,go-w", "z+q"))
    with pytest.raises(SpecError, match=r"line \d+: COPY .*--chmod must be a number"):
        runtime.images.build(REFERENCE, containerfile=dockerfile)


def test_commands_begin_in_the_directory_of_the_base_of_a_stage_or_of_a_variable(
    runtime: hr.Runtime, dockerfile: Path, base_image: str
) -> None:
    base = REFERENCE.replace("dockerfile", "base")
    text = f"FROM {base} AS first\nENV HERE=deep\nWORKDIR $HERE\nFROM first\nRUN pwd > /seen\n"
    dockerfile.write_text(f"FROM {base_image}\nWORKDIR /srv/project\n")
    with built(runtime, base, dockerfile):
        dockerfile.write_text(text)
        with built(runtime, REFERENCE, dockerfile) as started:
            assert started.exec(["sh", "-c", "cat /seen; pwd"]).stdout == b"/srv/project/deep\n" * 2


HEREDOCS = """\
FROM {base}
ARG SUB=none
SHELL ["/bin/bash", "-c"]
RUN cat > /usr/local/bin/fix <<'BASH' && chmod +x /usr/local/bin/fix
#!/usr/bin/env bash
# not a comment of this file
echo "a $1" \\
  end
BASH
RUN <<EOF
[[ a == a ]] && printf '%s\\n' "100% '$SUB'" > /ran
EOF
RUN <<EOF
#!/usr/bin/env python3
print("from\\tpython", file=open("/ran", "a"))
EOF
WORKDIR /of/$SUB/x
COPY --chmod=u+x,go= <<EOF <<-"RAW" files/
given: ${{SUB}} \\$SUB
EOF
\traw: ${{SUB}}
\tRAW
"""


def test_given_arguments_and_here_documents_count_on_every_engine(
    runtime: hr.Runtime, dockerfile: Path, base_image: str
) -> None:
    """As BuildKit documents them."""
    dockerfile.write_text(HEREDOCS.format(base=base_image))
    show = "fix 1; cat /ran; pwd; cat files/EOF files/RAW; stat -c '%a %u' files/*; ls -A / | grep hyperruntime"
    with built(runtime, REFERENCE, dockerfile, build_args={"SUB": "a given"}) as started:
        result = started.exec(["sh", "-c", show])
    assert result.stdout.decode().splitlines() == [
        "a 1 end", "100% 'a given'", "from\tpython", "/of/a given/x", "given: a given $SUB", "raw: ${SUB}",
        "700 0", "700 0",
    ], result.stderr  # fmt: skip


def test_labels_are_those_of_docker(runtime: hr.Runtime, dockerfile: Path, base_image: str) -> None:
    labels = (
        'LABEL braces={{x}} words="two  words" given=$GIVEN price=\\$5\nLABEL old  form of $GIVEN\n'
    )
    dockerfile.write_text(f"FROM {base_image}\nARG GIVEN\n{labels}")
    with built(runtime, REFERENCE, dockerfile, build_args={"GIVEN": "{{y"}):
        if runtime.name in ("apptainer", "bubblewrap", "charliecloud"):
            entry = Store().find(REFERENCE)
            assert entry is not None
            found = entry.config.more["Labels"]
        else:
            args = [runtime.name, "image", "inspect", "--format", "{{json .Config.Labels}}"]
            found = json.loads(run_process([*args, REFERENCE], timeout_s=60).stdout)
    expected = {
        "braces": "{{x}}",
        "words": "two  words",
        "given": "{{y",
        "price": "$5",
        "old": "form of {{y",
    }
    assert {name: found.get(name) for name in expected} == expected
