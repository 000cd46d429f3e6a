"""Settings from TOML, YAML, JSON and texts, read into attrs classes."""
