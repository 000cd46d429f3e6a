"""Container images: recipes, builds, pulls, Containerfiles, definition files and saved archives."""
