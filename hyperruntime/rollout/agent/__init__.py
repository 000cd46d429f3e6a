"""The agent loop: a model, its tools, and the record of the conversation."""
