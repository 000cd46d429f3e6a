"""Parts of the site for Sphinx: tables of the reference from the code, links to sources, plots, and
a check.

``reference.py`` reads the code and knows nothing of Sphinx; the other modules put its rows into
pages.
"""
