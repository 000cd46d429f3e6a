"""The example of docs/integrations/swe_rex.md."""

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

from hyperruntime_swe_rex import Deployment


async def compute() -> str:
    """Return what commands in a container say."""
    deployment = Deployment(image="base", container={"limits": {"memory_bytes": 1024**3}})
    await deployment.start()
    try:
        await deployment.runtime.create_session(CreateBashSessionRequest())
        await deployment.runtime.run_in_session(BashAction(command="cd /tmp; answer=42"))
        seen = await deployment.runtime.run_in_session(
            BashAction(command="echo $answer in $PWD", timeout=10)
        )
        name = await deployment.runtime.execute(Command(command=["hostname"]))
        return f"{seen.output}on {name.stdout}"
    finally:
        await deployment.stop()
