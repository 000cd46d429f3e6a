"""A shell that keeps its state, a deadline that only ends one text in it, and the clean end of what
it started.
"""

import hyperruntime as hr

with (
    hr.open_runtime() as runtime,
    runtime.container(hr.ContainerSpec(image=runtime.images.ensure("base"))) as container,
):
    with container.shell() as shell:
        shell.run("mkdir -p /tmp/work && cd /tmp/work && export GREETING=hello").check()
        shell.run("say() { echo $GREETING from $PWD; }")
        print(shell.run("say").stdout.decode().strip())

        late = shell.run("sleep 60", timeout_s=0.5)
        print("timed out:", late.timed_out)
        print("the shell still knows:", shell.run("echo $GREETING").stdout.decode().strip())

        shell.run("sleep 600 &")
        print("jobs:", shell.run("jobs -r | wc -l").stdout.decode().strip())

    # The shell is closed: its jobs have ended, the container goes on.
    left = container.exec(["sh", "-c", "grep -l sleep /proc/[0-9]*/comm | wc -l"])
    print("sleepers left:", left.stdout.decode().strip())
