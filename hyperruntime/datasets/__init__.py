"""Data sets of others, in which some rows may be odd: all readers use this, of environments,
domains and batches.

``left_out.py`` leaves odd rows out by name; ``json_lines.py`` reads files of JSON lines;
``answered_files.py`` checks answers that are files.
"""
