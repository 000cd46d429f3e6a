"""Images by name: recipes, builds, Containerfiles and definition files, saved files."""
