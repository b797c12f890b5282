"""`python -m sandbox_server` is `sandbox serve`."""

import sys

from sandbox_sdk.cli import main

main(["serve", *sys.argv[1:]])
