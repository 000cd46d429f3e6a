"""Score one label; no answer raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyperruntime.domain import Score

_MAX_CHARACTERS = 1000


def score_label(task_id: str, label: str, prediction: Any, labels: Sequence[str]) -> Score:  # noqa: ANN401
    """Return 1 for the right label, 0 for another label, and an invalid 0 for any other answer.

    The facts hold the right label; they stay on the host. The detail does not, because later agents may read it.

    Args:
        task_id: the id of the row.
        label: the right label.
        prediction: the answer, any JSON value.
        labels: all labels.
    """
    said = _as_label(prediction, labels)
    if said is None:
        return Score(
            task_id=task_id,
            value=0.0,
            valid=False,
            detail=f"the answer is not one of the {len(labels)} labels",
            facts={"label": label, "said": None},
        )
    right = said == label
    return Score(
        task_id=task_id,
        value=float(right),
        valid=True,
        detail="right" if right else "wrong",
        facts={"label": label, "said": said},
    )


def _as_label(prediction: object, labels: Sequence[str]) -> str | None:
    """Return the label that an answer names, ignoring case and surrounding space; None if there is no single one."""
    if type(prediction) not in (str, int, float, bool):
        return None
    text = str(prediction).strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    if text in labels:
        return text
    alike = [label for label in labels if label.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else None
