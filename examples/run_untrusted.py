"""Run a program that nobody has read: no network, no files of the host, limits, and a deadline that
ends all of it.
"""

import hyperruntime as hr

PROGRAM = """
import os, socket, subprocess
print("user", os.getuid(), "sees", sorted(os.listdir("/home")))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError as error:
    print("network:", type(error).__name__)
subprocess.Popen(["setsid", "sleep", "600"])  # it hides, and it ends with the deadline too
print("working", flush=True)
while True:
    pass
"""

with hr.open_runtime() as runtime:
    spec = hr.ContainerSpec(
        image=runtime.images.ensure("base"),
        read_only_rootfs=True,
        limits=hr.Limits(pids=64, disk_bytes=50_000_000),
    )
    with runtime.container(spec) as container:
        result = container.exec(["python3", "-c", PROGRAM], timeout_s=2, output_limit_bytes=10_000)
        print(result.stdout.decode(), end="")
        print("timed out:", result.timed_out, "exit code:", result.exit_code)
        left = container.exec(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm | wc -l"], timeout_s=5)
        print("sleepers left:", int(left.stdout))
