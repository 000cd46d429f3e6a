"""The files of a run of rollouts: trajectories and groups, one JSON line each."""
