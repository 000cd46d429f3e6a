"""Turn the results of tests into verdicts: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hyperenvironment_swe.items import SweItem
from hyperenvironment_swe.judging import UNKNOWN_TEST, Findings
from hyperenvironment_swe.state import State
from hyperruntime.rollout.environment import Verdict

# What is reported of tests that skip themselves, or are expected to fail. A skip is no failure.
_NO_RESULT = ("setup skipped", "call skipped", "call passed")
_LISTED = 20
_TAIL = 4000


def nothing(detail: str, state: State | None = None) -> Verdict:
    """Return the verdict on an agent that left nothing to judge."""
    return Verdict(
        reward=0.0, phase="agent", detail=detail, facts={} if state is None else _facts(state)
    )


def not_installed(state: State, failure: Findings) -> Verdict:
    """Return the verdict on a state that does not install, although its base does."""
    facts = {**_facts(state), "output": failure.output[-_TAIL:]}
    return Verdict(
        reward=0.0,
        parts={"install": 0.0},
        phase="install",
        detail="it does not install",
        facts=facts,
    )


def base_faults(problems: Mapping[str, str], keep: Collection[str]) -> list[str]:
    """Return the tests that no agent can pass, by their results on the base.

    Args:
        problems: why tests did not pass on the base, or "", by id.
        keep: the tests that must pass on the base; other tests must be known to the test runner.
    """
    return [
        test
        for test, why in problems.items()
        if why == UNKNOWN_TEST or (test in keep and why and not why.startswith(_NO_RESULT))
    ]


def verdict(
    item: SweItem,
    state: State,
    tested: Findings,
    tests: Mapping[str, Sequence[str]],
    *,
    skipped: Collection[str],
    shaped: bool,
) -> Verdict:
    """Return the verdict on a state whose tests ran.

    Args:
        item: the problem.
        state: the state.
        tested: the results.
        tests: the tests that each wanted id means.
        skipped: tests without a result on the base either; they do not count.
        shaped: whether a part of the tests gives a part of the reward.
    """
    failed = {}
    for name, means in tests.items():
        if missing := [test for test in means if test not in tested.passed and test not in skipped]:
            failed[name] = tested.problems.get(missing[0], "")
    passed = tests.keys() - failed.keys()
    parts = {"install": 1.0, "pass_to_pass": _part(item.pass_to_pass, passed)}
    if set(item.fail_to_pass) <= tests.keys():
        parts["fail_to_pass"] = _part(item.fail_to_pass, passed)
    protections = dict(tested.protections)
    facts = {
        **_facts(state),
        "separate_user": protections["separate_user"],
        "protections": protections,
    }
    facts |= {
        "forged": bool(tested.unfailed),
        "unfailed_controls": list(tested.unfailed),
        "tests": len(tests),
    }
    facts |= {
        "failed": dict(list(failed.items())[:_LISTED]),
        "output": tested.output[-_TAIL:] if failed else "",
    }
    if skipped:
        facts["skipped_on_base"] = sorted(skipped)[:_LISTED]
    detail = f"{len(failed)} of {len(tests)} tests did not pass" if failed else "every test passed"
    if tested.unfailed:
        detail = "tests that must fail did not, so no test counts"
    reward = 1.0 if not failed else 0.5 * len(passed) / len(tests) if shaped else 0.0
    return Verdict(reward=reward, parts=parts, phase="tests", detail=detail, facts=facts)


def _facts(state: State) -> dict[str, Any]:
    facts = {
        "dropped": [list(one) for one in state.dropped[:_LISTED]],
        "patch_bytes": state.patch_bytes,
    }
    return {**facts, "submodules": list(state.submodules[:_LISTED])} if state.submodules else facts


def _part(ids: Sequence[str], passed: Collection[str]) -> float:
    return sum(name in passed for name in ids) / len(ids) if ids else 1.0
