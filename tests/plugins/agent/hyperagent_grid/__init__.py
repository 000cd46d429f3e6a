"""An agent template: a grid of circles."""

from pathlib import Path

AGENT = Path(__file__).with_name("agent")
