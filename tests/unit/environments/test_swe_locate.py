"""Ids of public rows, and the tests of a repository that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperenvironment_swe.items import SweItem, parse_row
from hyperenvironment_swe.locate import is_cut, locate_tests
from hyperruntime.errors import SpecError
from hyperruntime.rollout.repositories import Checkout, Repositories
from tests.swecase import make_repository

FORMS = '''
from django.test import SimpleTestCase

class FormsTests(SimpleTestCase):
    def test_bound(self):
        pass

    def test_max(self):
        """
        If the maximum is less than the number of forms in the
        data, an error is raised.
        """

class Other(FormsTests):
    pass
'''
ARITH = "def test_sqrt():\n    pass\n\ndef helper():\n    pass\n"
FILES = {
    "pkg/tests/test_arith.py": ARITH,
    "pkg/tests/test_more.py": "def test_more():\n    pass\n",
    "tests/forms_tests/tests/test_forms.py": FORMS,
    "tests/views/tests.py": FORMS.replace("FormsTests", "ViewsTests"),
    "broken/test_syntax.py": "def (:\n",
}
NEW = "--- /dev/null\n+++ b/pkg/tests/test_new.py\n@@ -0,0 +1,2 @@\n+def test_sqrt():\n+    pass\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A repository with tests of several styles."""
    where = tmp_path_factory.mktemp("located")
    commit = make_repository(where / "repository", FILES)
    return Repositories(where / "cache").prepare(where / "repository", commit)


def item(*names: str, **row: Any) -> SweItem:
    """Return an item with these tests."""
    basic = {"id": "one", "repo": "/r", "base_commit": "a" * 40, "problem_statement": ""}
    return parse_row({**basic, "FAIL_TO_PASS": names, **row})


FORMS_FILE, VIEWS_FILE = "tests/forms_tests/tests/test_forms.py", "tests/views/tests.py"


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        (
            "pkg/tests/test_arith.py::test_sqrt[1-a b]",
            ["pkg/tests/test_arith.py::test_sqrt[1-a b]"],
        ),
        (
            "test_bound (forms_tests.tests.test_forms.FormsTests)",
            [f"{FORMS_FILE}::FormsTests::test_bound"],
        ),
        (
            "test_bound (forms_tests.tests.test_forms.Other.test_bound)",
            [f"{FORMS_FILE}::Other::test_bound"],
        ),
        ("test_bound (views.tests.ViewsTests)", [f"{VIEWS_FILE}::ViewsTests::test_bound"]),
        (
            "If the maximum is less than the number of forms in the",
            [f"{FORMS_FILE}::FormsTests::test_max", f"{VIEWS_FILE}::ViewsTests::test_max"],
        ),
        ("test_sqrt", ["pkg/tests/test_arith.py::test_sqrt"]),
    ],
)
def test_an_id_means_the_tests_that_its_runner_printed(
    checkout: Checkout, name: str, tests: list[str]
) -> None:
    """Ids of pytest, of unittest (before and since Python 3.11), of Django and of sympy."""
    assert sorted(locate_tests(item(name), checkout)[name]) == tests


def test_a_bare_name_is_searched_in_the_files_of_the_test_patch(checkout: Checkout) -> None:
    """SWE-bench runs only these files."""
    assert locate_tests(item("test_sqrt", test_patch=NEW), checkout) == {
        "test_sqrt": ("pkg/tests/test_new.py::test_sqrt",)
    }


@pytest.mark.parametrize(
    "name",
    ["pkg/tests/gone.py::test_a", "test_bound (no.such.module.Case)", "test_bound (views.tests.Gone)", "no such words",
     "test_gone", "--version is equivalent to version"],
)  # fmt: skip
def test_an_id_without_a_test_is_refused(checkout: Checkout, name: str) -> None:
    """It could only ever give the reward 0."""
    with pytest.raises(SpecError, match=r"tests of item one.*1 of 2 ids"):
        locate_tests(item("test_sqrt", name), checkout)


def test_ids_of_other_tests_than_methods_are_refused_with_the_runner_unittest(
    checkout: Checkout,
) -> None:
    with pytest.raises(SpecError, match="runner unittest"):
        locate_tests(item("test_sqrt", runner="unittest"), checkout)


def test_tests_that_need_djangos_own_runner_are_refused(tmp_path: Path) -> None:
    """It makes settings and databases, without which each of its tests fails."""
    commit = make_repository(tmp_path / "django", {**FILES, "tests/runtests.py": ""})
    checkout = Repositories(tmp_path / "cache").prepare(tmp_path / "django", commit)
    with pytest.raises(SpecError, match=r"tests/runtests\.py"):
        locate_tests(item("test_bound (views.tests.ViewsTests)"), checkout)
    assert locate_tests(item("tests/views/tests.py::ViewsTests::test_bound"), checkout)


@pytest.mark.parametrize(
    ("name", "cut"),
    [("t.py::test[a", True), ("t.py::test[a b]", False), ("t.py::test[c[d]]", False), ("t.py::test[[]", False),
     ("t.py::test", False), ("test[a", False)],
)  # fmt: skip
def test_ids_that_end_inside_their_parameters_are_recognised(name: str, *, cut: bool) -> None:
    """SWE-bench's log parsers cut ids of pytest at the first space."""
    assert is_cut(name) == cut
