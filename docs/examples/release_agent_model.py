# ruff: noqa: F821


def respond(call):
    version = call.prompt.removeprefix("Release version ").removesuffix(".")
    if call.turn == 0:
        return tool("deploy_to_staging", version=version)
    if call.turn == 1:
        return tool("deploy_to_production", version=version)
    return say(call.messages[-1]["content"])
