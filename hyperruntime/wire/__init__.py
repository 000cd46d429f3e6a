"""One connection between two processes: its channel, the calls over it, and typed messages.

``channel`` keeps the connection and its lost parts, ``peer`` carries calls and answers over it,
``messages`` are what it carries. It knows no containers.
"""
