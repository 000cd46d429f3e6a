"""The files of a run: their paths, their contents and how to read them back.

The options of the run are one of these files.
"""
