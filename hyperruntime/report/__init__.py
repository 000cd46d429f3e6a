"""Show a run: one page of HTML about it, and pictures of its lineage, its progress and its best
answers.
"""
