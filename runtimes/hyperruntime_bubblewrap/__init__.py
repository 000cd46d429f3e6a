"""Bubblewrap as an engine of hyperruntime: the host's own programs, and the model of a third party's driver."""

from hyperruntime_bubblewrap.driver import BubblewrapDriver as BubblewrapDriver
