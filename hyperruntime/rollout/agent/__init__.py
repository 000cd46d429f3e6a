"""The agent loop: a model, the tools it may call, and what is recorded of the conversation."""
