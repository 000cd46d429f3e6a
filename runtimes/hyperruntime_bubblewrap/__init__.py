"""The hyperruntime driver for bubblewrap, which runs the host's programs; an example for
third-party drivers.
"""

from hyperruntime_bubblewrap.driver import BubblewrapDriver as BubblewrapDriver
