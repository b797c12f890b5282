"""Sandboxes as tools of AI agents.

| module                | for                                                      | extra         |
| --------------------- | -------------------------------------------------------- | ------------- |
| tools                 | any framework or none: schemas, `SandboxTools`           |               |
| langchain             | LangChain and LangGraph: tools and a middleware          | langchain     |
| langgraph_checkpoints | LangGraph: checkpoints with the files of the sandbox     | langchain     |
| deepagents            | deepagents: a backend                                    | deepagents    |
| openai_agents         | OpenAI Agents SDK: a shell, sandboxes of SandboxAgents   | openai-agents |
| anthropic             | Anthropic's SDK: Claude's own bash and text editor       | anthropic     |
| mcp                   | the Model Context Protocol, on stdio and over HTTP       | mcp           |

All of them use `tools`, and `presenting` is what their models see. Nothing is imported here, so
that each module needs its own extra alone.
"""
