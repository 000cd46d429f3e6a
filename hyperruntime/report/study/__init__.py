"""Several runs compared: figures over runs, tests, tables and pictures for a paper."""
