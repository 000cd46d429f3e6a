"""Python packages for images: requirements files, the wheels that exist, and how this machine
reaches package indexes.
"""
