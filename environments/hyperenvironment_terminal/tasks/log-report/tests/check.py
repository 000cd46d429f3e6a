"""Compare the report with what the logs say."""

import json
import sys

EXPECTED = {"requests": 11, "bytes": 18830, "errors": 2, "busiest": "10.0.0.3"}

with open("/app/report.json", encoding="utf-8") as file:
    report = json.load(file)
print(report)
sys.exit(report != EXPECTED)
