"""Shares of a bill in whole cents."""


def split_evenly(total, people):
    """Return each one's share of a total; the shares differ by at most one cent."""
    if people < 1:
        raise ValueError("nobody is there to pay")
    return [total // people] * people


def split_by_weight(total, weights):
    """Return shares in proportion to weights; cents that are left go to the largest weights
    first.
    """
    if not weights or min(weights) < 0 or sum(weights) == 0:
        raise ValueError("weights must not be negative, nor all zero")
    shares = [total * weight // sum(weights) for weight in weights]
    left = total - sum(shares)
    for index in range(left):
        shares[index] += 1
    return shares
