"""Sessions in the words of a platform: start one in an environment, run code, stop it.

from sandbox_sdk.platform import Lifecycle

lifecycle = Lifecycle()
session = lifecycle.start({"type": "code_executor"}, environment="Python3")
lifecycle.sandbox_mgr.execute_code(session["session_id"], "print('hello')")["stdout"]
lifecycle.stop(session["session_id"])
"""

from sandbox_sdk.platform.lifecycle import CodeRunner, Lifecycle

__all__ = ["CodeRunner", "Lifecycle"]
