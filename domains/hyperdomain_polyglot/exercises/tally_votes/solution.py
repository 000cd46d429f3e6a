def tally_votes(ballots):
    left, out = {name for ballot in ballots for name in ballot}, []
    while left:
        firsts = [next((name for name in ballot if name in left), None) for ballot in ballots]
        votes = {name: firsts.count(name) for name in left}
        winner = [name for name in left if 2 * votes[name] > sum(votes.values())]
        if winner:
            return [*out, winner[0]]
        loser = max(left, key=lambda name: (-votes[name], name))
        left.discard(loser)
        out.append(loser)
    return out
