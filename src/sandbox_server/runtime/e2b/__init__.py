"""Boxes that are E2B sandboxes, made with the operator's key through E2B's own SDK."""

from sandbox_server.runtime.e2b.account import E2bAccount
from sandbox_server.runtime.e2b.runtime import E2bBox, E2bRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["E2bAccount", "E2bBox", "E2bRuntime", "make"]


def make(options: RuntimeOptions) -> E2bRuntime:
    """Entry point in the group agent_sandbox.runtimes."""
    account = E2bAccount(
        api_key=options.e2b_api_key,
        api_url=options.e2b_api_url,
        sandbox_url=options.e2b_sandbox_url,
        domain=options.e2b_domain,
    )
    return E2bRuntime(account, template=options.e2b_template)
