"""The generate loop: agents that change themselves, generation after generation, in containers."""
