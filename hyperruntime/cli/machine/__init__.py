"""Commands about this machine: engines, doctor, selfcheck."""
