"""`python -m sandbox_sdk --test` tries everything out once; anything else is the command line."""

from __future__ import annotations

import sys

if sys.argv[1:] == ["--test"]:
    from sandbox_sdk.selftest import main

    sys.exit(main())

from sandbox_sdk.cli import main as command_line

command_line(sys.argv[1:])
