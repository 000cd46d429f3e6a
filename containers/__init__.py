"""Image recipes: one folder per image."""
