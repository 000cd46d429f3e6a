"""A run's pictures: lineage, progress, and what its best generation answered."""
