"""Training data made of scored trajectories, in each form that trainers read."""
