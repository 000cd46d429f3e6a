"""Record each exchange: its usage against the budgets, and its log entry without keys."""
