def fewest_coins(coins, amount):
    raise NotImplementedError("to be written")
