"""Convert scored trajectories to the training data formats of trainers."""
