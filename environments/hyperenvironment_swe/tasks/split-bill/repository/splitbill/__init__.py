"""Divide bills."""

from splitbill.shares import split_evenly, split_by_weight

__all__ = ["split_by_weight", "split_evenly"]
