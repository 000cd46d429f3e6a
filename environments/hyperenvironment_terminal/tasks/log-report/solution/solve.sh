#!/bin/bash
set -e
cat > /tmp/report.py <<'END'
import collections, glob, json, re

line = re.compile(r"\S+ (\S+) [A-Z]+ (\S+) (\d{3}) (\d+|-)")
found = []
for name in sorted(glob.glob("/app/logs/*.log")):
    with open(name) as file:
        found += [m.groups() for m in (line.fullmatch(text.rstrip("\n")) for text in file) if m]
counts = collections.Counter(client for client, *_ in found)
most = max(counts.values())
report = {
    "requests": len(found),
    "bytes": sum(int(size) for *_, size in found if size != "-"),
    "errors": sum(500 <= int(status) < 600 for _, _, status, _ in found),
    "busiest": min(client for client, n in counts.items() if n == most),
}
with open("/app/report.json", "w") as file:
    json.dump(report, file)
END
python3 /tmp/report.py
