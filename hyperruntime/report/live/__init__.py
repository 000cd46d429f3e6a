"""The live page about a run: a follower of the run's journal, the server of the page, and its
address.

The run knows nothing of it: everything is read from the files of the run.
"""
