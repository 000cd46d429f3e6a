"""Evaluate in stages: a cheap look everywhere, then the first split in full, then the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperruntime.domain import Domain, Split
from hyperruntime.loop.evaluation.evaluator import Evaluator, evaluated_splits
from hyperruntime.loop.run_files.options import GenerateOptions

AfterSplit = Callable[[Domain, Split], None]


def evaluate_domains(
    evaluator: Evaluator, domains: Sequence[Domain], options: GenerateOptions, after_split: AfterSplit
) -> bool:
    """Run all that an agent deserves; return whether it was stopped after the first stage.

    The full evaluation runs when *every* domain's first split passes its first stage. The first stages of all of them
    are run, whatever the order of the domains; one that has none is then not run at all, and counts 0. All first
    splits are done before any later one starts, so that what an agent writes while it answers a later one cannot
    reach what ``after_split`` keeps of the first.

    Raises:
        GenerationFailedError: an evaluation took too long, or could not run at all.
        ContainerLostError: the container ended meanwhile.
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
        return True  # more than the first stage was run already, before an interrupt
    result = evaluator.run_split(domain, split, samples=samples, staged=True)
    return split.is_passed(result.mean)
