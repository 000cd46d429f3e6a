"""The hyperruntime driver for Charliecloud: containers of ``ch-run``, for ordinary users only."""

from hyperruntime_charliecloud.driver import CharliecloudDriver as CharliecloudDriver
