"""The registry folder: environments, tools, prompts and agents, declared in YAML files."""
