def tally_votes(ballots):
    raise NotImplementedError("to be written")
