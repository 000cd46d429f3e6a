def fewest_coins(coins, amount):
    if amount < 0:
        raise ValueError("a negative amount")
    best = [[]] + [None] * amount
    for total in range(1, amount + 1):
        found = [[coin, *best[total - coin]] for coin in coins if coin <= total and best[total - coin] is not None]
        lists = [sorted(item, reverse=True) for item in found]
        if lists:
            least = min(map(len, lists))
            best[total] = max(item for item in lists if len(item) == least)
    if best[amount] is None:
        raise ValueError("it cannot be done")
    return best[amount]
