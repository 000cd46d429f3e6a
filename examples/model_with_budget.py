"""Give a model to a container that has no network and no key, count what it spends, and stop it at
a budget.
"""

import hyperruntime as hr
from hyperruntime.errors import BudgetExceededError
from hyperruntime.testing.model import says, scripted_model

ASK = """
import json, os, urllib.request, urllib.error
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "hello"}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
for number in range(3):
    try:
        with urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)) as answer:
            print(number, json.load(answer)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        print(number, "refused with", error.code)
"""

with (
    scripted_model(lambda request: says("hello from the model")) as model,
    hr.open_runtime() as runtime,
):
    config = hr.GatewayConfig(
        upstreams=(hr.Upstream(name="local", url=model.url),),
        models=(hr.ModelRule(name="*", upstream="local"),),
    )
    spec = hr.ContainerSpec(image=runtime.images.ensure("base"))
    with (
        hr.Gateway(config) as gateway,
        runtime.container(spec) as container,
        hr.Access(gateway, container, "example", hr.Budget(requests=2)) as access,
    ):
        print(
            container.exec(["python3", "-c", ASK], env=access.env, timeout_s=60)
            .check()
            .stdout.decode(),
            end="",
        )
        print("spent:", access.seat.spent.requests, "requests")
        try:
            access.check()
        except BudgetExceededError as error:
            print(type(error).__name__)
