"""Evaluate in stages: a cheap first stage on every domain, then the first splits in full, then the other splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperruntime.domain import Domain, Split
from hyperruntime.loop.evaluation.evaluator import Evaluator, evaluated_splits
from hyperruntime.loop.run_files.options import GenerateOptions

AfterSplit = Callable[[Domain, Split], None]


def evaluate_domains(
    evaluator: Evaluator, domains: Sequence[Domain], options: GenerateOptions, after_split: AfterSplit
) -> bool:
    """Evaluate an agent on all domains; return whether the evaluation stopped after the first stage.

    The first stage runs on the first split of every domain. If one domain does not pass, the evaluation stops, and a
    domain without a first stage counts 0. Otherwise all first splits are evaluated in full before any later split, so
    that the agent cannot change files of a first split, which ``after_split`` keeps, while it answers a later one.

    Args:
        evaluator: runs the splits and keeps the results.
        domains: the domains, in order.
        options: options of the run.
        after_split: called after each split.

    Raises:
        GenerationFailedError: the time limit passed, or no task could be run.
        ContainerLostError: the container ended during the evaluation.
    """
    staged = not options.skip_staged_eval
    samples = [options.samples(position) for position in range(len(domains))]
    parts = [evaluated_splits(domain, test=options.eval_test) for domain in domains]
    asked = tuple(zip(domains, parts, samples, strict=True))
    passed = [not staged or _passes(evaluator, domain, splits[0], count) for domain, splits, count in asked]
    if not all(passed):
        for domain, splits, count in asked:
            evaluator.settle_split(domain, splits[0], samples=count)
            after_split(domain, splits[0])
        return True
    for number in range(max(map(len, parts))):
        for domain, splits, count in asked:
            for split in splits[number : number + 1]:
                if number == 0 or not staged or _passes(evaluator, domain, split, count):
                    evaluator.run_split(domain, split, samples=count, staged=False)
                after_split(domain, split)
    return False


def _passes(evaluator: Evaluator, domain: Domain, split: Split, samples: int | None) -> bool:
    known = evaluator.results.get(domain.name, {}).get(split.name)
    if not split.staged_samples or (known is not None and len(known.scores) > split.staged_samples):
        return True  # no first stage, or more than it was run before an interrupt
    result = evaluator.run_split(domain, split, samples=samples, staged=True)
    return split.is_passed(result.mean)
