"""The files of a rollout run: trajectories and groups, one JSON line each."""
