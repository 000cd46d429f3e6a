"""Commands about runs of the generate loop."""
