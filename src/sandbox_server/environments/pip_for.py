"""Runs pip for another interpreter: `pip_for.py MARKERS install …`.

pip's own --python-version and --platform choose the wheels, but pip still takes the interpreter
that runs it for markers such as `python_version < "3.12"`, and would leave out what that one does
not need.
"""

from __future__ import annotations

import json
import sys

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

own_environment = markers.default_environment
given = json.loads(sys.argv[1])
markers.default_environment = lambda: {**own_environment(), **given}
sys.exit(main(sys.argv[2:]))
