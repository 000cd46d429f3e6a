"""Names of users become ids from the container's own tables, which are not trusted."""

from __future__ import annotations

import pytest

from hyperruntime.errors import SpecError, UserNotFoundError
from hyperruntime.run_as import find_named, find_user, is_root

PASSWD = (
    "root:x:0:0::/root:/bin/sh\nada:x:1000:100:Ada:/home/ada:/bin/sh\nbroken\nodd:x:many:1::/:\n"
)
GROUPS = "root:x:0:\nusers:x:100:\nstaff:x:50:ada\n"


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("ada", "1000:100"),
        ("ada:staff", "1000:50"),
        ("ada:7", "1000:7"),
        ("1000", "1000:100"),
        ("1234", "1234:1234"),
        ("1234:5678", "1234:5678"),
    ],
)
def test_a_user_has_the_ids_of_its_entry_or_the_given_numbers(user: str, ids: str) -> None:
    assert str(find_user(user, PASSWD, GROUPS)) == ids


@pytest.mark.parametrize("user", ["nobody-at-all", "ada:nogroup", "broken", "odd", "0:5"])
def test_an_unknown_user_and_root_with_another_group_are_refused(user: str) -> None:
    with pytest.raises(UserNotFoundError if user != "0:5" else SpecError):
        find_user(user, PASSWD, GROUPS)


MORE = GROUPS + "admin:x:4:bob\nwheel:x:0:eve\n"
USERS = (
    PASSWD
    + "bob:x:5:5::/home/bob:/bin/sh\neve:x:6:6::/:\ntoor:x:0:0::/:\nzero:x:7:0::/:\nbare:x:8:8\n"
)


@pytest.mark.parametrize(
    ("user", "run_as", "home"),
    [
        ("ada", "ada", "/home/ada"),  # the engine finds the group staff
        ("1000", "ada", "/home/ada"),
        ("ada:100", "1000:100", "/home/ada"),
        ("bare", "8:8", "/"),
        ("1234", "1234:1234", "/"),
    ],
)
def test_a_user_with_further_groups_runs_by_name_and_has_its_home(
    user: str, run_as: str, home: str
) -> None:
    found = find_named(user, USERS, MORE)
    assert (str(found.run_as), found.ids.home, str(found.ids)) == (
        run_as,
        home,
        str(find_user(user, USERS, MORE)),
    )


@pytest.mark.parametrize("user", ["root", "toor", "0", "zero", "eve", "6", "ada:0", "ada:root"])
def test_root_and_users_in_its_group_are_no_ordinary_users(user: str) -> None:
    with pytest.raises(SpecError, match="an ordinary user, neither root nor in the group of root"):
        find_named(user, USERS, MORE)


def test_root_is_known_by_name_and_by_number() -> None:
    assert [is_root(user) for user in ("root", "0:0", "root:root", "0:5", "ada")] == [
        True,
        True,
        True,
        False,
        False,
    ]
