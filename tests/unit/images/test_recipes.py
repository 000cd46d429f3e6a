"""Image recipes: their packages, and arguments that are checked before a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.bootstrap import (
    BASE_PACKAGES,
    DEV_PACKAGES,
    SCIENCE_PACKAGES,
    TORCH_PACKAGES,
)
from hyperruntime.images.recipes import (
    image_reference,
    load_recipe,
    recipe_names,
    recipe_of,
)
from tests.unit.images.recipefiles import read_containerfile

CONTAINERS = Path(__file__).parents[3] / "containers"
FOLDERS = sorted(path.parent.name for path in CONTAINERS.glob("*/Containerfile"))

CONTAINERFILE = """
ARG TAG=1
FROM example.org/a:${TAG}
ENV A=1 B="two words"
COPY . /build
RUN apt-get update \\
    && apt-get install --yes one \\
        two && if true; then echo x; fi
CMD ["/bin/sh", "-c"]
"""


def test_the_parts_of_a_containerfile_are_read() -> None:
    content = read_containerfile(CONTAINERFILE)
    assert content.packages == ["one", "two"]
    assert content.env == {"A": "1", "B": "two words"}


def test_the_recipes_have_names() -> None:
    assert recipe_names() == ("agent", "base", "cuda", "dev", "genesis", "science", "torch")


def test_recipes_contain_the_packages_of_the_bootstrap() -> None:
    def packages(name: str) -> set[str]:
        return set(read_containerfile((CONTAINERS / name / "Containerfile").read_text()).packages)

    assert packages("base") == set(BASE_PACKAGES)
    assert packages("dev") == set(DEV_PACKAGES)
    assert packages("science") == set(SCIENCE_PACKAGES)
    assert packages("torch") == set(TORCH_PACKAGES)
    assert packages("cuda") > set(BASE_PACKAGES)


def test_cuda_has_the_python_requirements_of_agent() -> None:
    both = [(CONTAINERS / name / "requirements.txt").read_text() for name in ("agent", "cuda")]
    assert "openai" in both[0]
    assert both[0] == both[1]


@pytest.mark.parametrize("version", ["11.8", "12.1", "12.4", "13.0"])
def test_the_argument_cuda_selects_a_matching_image_and_wheel_index(version: str) -> None:
    chosen = load_recipe("cuda").arguments({"CUDA": version})
    assert set(chosen) == {"CUDA_TAG", "TORCH_INDEX"}
    assert chosen["CUDA_TAG"].startswith(f"{version}.")
    assert chosen["CUDA_TAG"].endswith("-devel-ubuntu22.04")
    assert chosen["TORCH_INDEX"].endswith(f"/cu{version.replace('.', '')}")


def test_the_defaults_of_the_files_are_one_of_the_choices() -> None:
    defaults = read_containerfile((CONTAINERS / "cuda/Containerfile").read_text()).arguments
    chosen = load_recipe("cuda").arguments({"CUDA": "12.4"})
    assert {name: defaults[name] for name in chosen} == chosen


def test_an_explicit_argument_overrides_the_value_of_a_choice() -> None:
    arguments = {
        "TORCH_INDEX": "https://example.org/simple",
        "CUDA": "13.0",
        "http_proxy": "http://proxy:1",
    }
    chosen = load_recipe("cuda").arguments(arguments)
    assert chosen["TORCH_INDEX"] == "https://example.org/simple"
    assert chosen["CUDA_TAG"].startswith("13.0")
    assert chosen["http_proxy"] == "http://proxy:1"


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("cuda", {"CUDA": "12"}, "one of 11.8, 12.1, 12.4, 13.0"),
        ("cuda", {"TORCHINDEX": "x"}, "did you mean 'TORCH_INDEX'?"),
        ("agent", {"CUDA": "12.4"}, "recipe 'agent' has none"),
        ("base", {"A": "1"}, "recipe 'base' has none"),
    ],
)
def test_unknown_arguments_are_rejected(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_recipe(name).arguments(given)
    assert said in str(caught.value)


def test_a_recipe_is_found_by_its_name_and_by_its_image_reference() -> None:
    agent = load_recipe("agent")
    assert recipe_of("agent") == recipe_of("localhost/hyperruntime/agent:latest") == agent
    assert image_reference("agent") == agent.reference == "localhost/hyperruntime/agent:latest"
    assert recipe_of("localhost/hyperruntime/agents:latest") is None
    assert recipe_of("example.org/agent") is None
    assert image_reference("example.org/agent") == "example.org/agent"


def test_only_cuda_needs_a_registry() -> None:
    assert {name: load_recipe(name).needs_no_registry for name in recipe_names()} == {
        "agent": True, "base": True, "cuda": False, "dev": True, "genesis": True,
        "science": True, "torch": True,
    }  # fmt: skip
    bases = {name: load_recipe(name).base_recipe for name in recipe_names()}
    assert bases == {**dict.fromkeys(bases), "agent": "base", "genesis": "dev"}
