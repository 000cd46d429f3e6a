"""All prompts of the agent, as constants and functions; change them freely."""

import json

from jsontext import write_call

TASK_SYSTEM = """\
You solve one task. Everything there is to know about it is in the message; think about what is really asked before \
you answer. You have a working directory of your own and may use the tools there, where trying something out is better \
than guessing; many tasks need none.

Your last message holds the answer as a single JSON value, in a block of its own:

```json
"for example a text"
```"""

META_SYSTEM = """\
You improve a program: an agent that answers tasks by asking a language model, and that also holds the code you are \
running on. You change its repository with the tools; whatever you leave there is the next generation. It is then \
measured on tasks, most of which you have never seen."""

MUST_STAY = """\
# What must stay

- `run_meta_agent.py` with its options, and `MetaAgent(model, chat_history_file).forward(repo_path, eval_path, \
iterations_left)`.
- `TaskAgent(model, chat_history_file).forward(inputs)`, which returns `(prediction, history)`; the prediction is a \
JSON value.
- `hyperrun.toml` and `domains/`: changes there are dropped.
- There is no network but the model's; only what is installed can be imported."""


def task(inputs, how):
    """Return the message about a task.

    Args:
        inputs: the inputs of the task; texts are inserted unchanged, other values as JSON.
        how: the instructions about the form of the answer.
    """
    parts = []
    for name, value in inputs.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        parts.append(f"# {name}\n\n{text}")
    return "\n\n".join([*parts, f"# How to answer\n\n{how}"])


def no_json():
    """Return the message after an answer without JSON."""
    return (
        "There was no JSON value in that. Repeat your answer as one JSON value in a block "
        "opened by ```json and closed by ```, and nothing else."
    )


def meta(repo, files, summary, evals_folder, iterations_left):
    """Return the task of the meta agent.

    Args:
        repo: the path of the repository.
        files: the list of its files.
        summary: the summary of earlier generations.
        evals_folder: the folder of evaluations; None or empty means none.
        iterations_left: how many generations can follow; None means unknown.
    """
    if iterations_left is None:
        left = ""
    elif iterations_left > 0:
        left = (
            f"After this generation {iterations_left} more can follow, so a change may also lay "
            "ground for later ones. "
        )
    else:
        left = "This is the last generation: nothing can be mended after it. "
    return f"""\
The repository is {repo}. {left}Make the agent answer its tasks better than it did, by a change whose reason you can \
give.

# What it holds

{files}

# What is known of earlier generations

{summary}

{_where(evals_folder)}

# What to do

1. Find out why answers were wrong or missing: read reports and chat histories of failed tasks before you change \
anything.
2. Change what causes that: prompts, the forms of answers, tools, the loop, or this procedure itself. Prefer what \
helps on tasks of the same kind that nobody has seen; answers of single tasks must not be written into the code.
3. Try it: at least `python3 -B -c "import task_agent, meta_agent"`, better a small test of what you changed.

{MUST_STAY}

When you are done, say in a few sentences what you changed and why you expect it to help."""


def _where(evals_folder):
    if not evals_folder:
        return "There is no folder of evaluations."
    return (
        f"All of it is in {evals_folder} (read-only): `gen_*/metadata.json`, "
        "`gen_*/agent_output/` with each patch and the meta agent's chat history, and "
        "`gen_*/*_eval/` with `report.json`, predictions, and in `agent_evals/` the chat "
        "history of every task. The first generation's files are in its `agent/`."
    )


def broken(error):
    """Return the message about a changed agent that cannot be imported."""
    return (
        f"The agent cannot be imported any more:\n\n{error}\n\nMend that; as it is, this "
        "generation would be lost."
    )


def calls_left(number):
    """Return a note about the number of tool calls left."""
    if number == 0:
        return "[this was the last call of a tool: finish with what there is]"
    return f"[calls of tools left: {number}]"


def text_results(results):
    """Return the message with the results of calls that were written as text."""
    return "\n\n".join(f"Result of the tool:\n{result}" for result in results)


def tools_as_text(tools):
    """Return the instructions for tool calls written as text."""
    described = "\n".join(
        f"- `{tool.NAME}`: {tool.DESCRIPTION} Arguments, as a JSON schema: "
        f"{json.dumps(tool.PARAMETERS)}"
        for tool in tools.values()
    )
    return f"""\
# Tools

To call a tool, write a block like this, and end your message after it; its result comes with the next message.

{write_call("bash", {"command": "ls -l"})}

{described}"""
