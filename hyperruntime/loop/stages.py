"""Evaluate in stages: a cheap look everywhere, then the first split in full, then the others. Imports evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperruntime.domain import Domain, Split
from hyperruntime.loop.evaluation import Evaluator, evaluated_splits
from hyperruntime.loop.options import GenerateOptions

AfterSplit = Callable[[Domain, Split], None]


def evaluate_domains(
    evaluator: Evaluator, domains: Sequence[Domain], options: GenerateOptions, after_split: AfterSplit
) -> bool:
    """Run all that an agent deserves; return whether it was stopped after the first stage.

    The full evaluation runs when the first stage of *every* domain's first split is above its threshold. All first
    splits are done before any later one starts, so that what an agent writes while it answers a later one cannot
    reach what ``after_split`` keeps of the first.

    Raises:
        GenerationFailedError: an evaluation took too long, or could not run at all.
        ContainerLostError: the container ended meanwhile.
    """
    staged = not options.skip_staged_eval
    samples = [options.samples(position) for position in range(len(domains))]
    asked = tuple(zip(domains, samples, strict=True))
    if staged and not all(_passes(evaluator, domain, evaluated_splits(domain)[0], count) for domain, count in asked):
        return True
    for number in range(max(len(evaluated_splits(domain)) for domain in domains)):
        for domain, count in asked:
            for split in evaluated_splits(domain)[number : number + 1]:
                if number == 0 or not staged or _passes(evaluator, domain, split, count):
                    evaluator.run_split(domain, split, samples=count, staged=False)
                after_split(domain, split)
    return False


def _passes(evaluator: Evaluator, domain: Domain, split: Split, samples: int | None) -> bool:
    if not split.staged_samples:
        return True
    result = evaluator.run_split(domain, split, samples=samples, staged=True)
    return result.mean > split.staged_threshold
