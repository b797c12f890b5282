"""`warden.pyz pid1 …` runs the warden, `warden.pyz relay` a relay in an exec,
`warden.pyz end` ends the box from an exec."""

import sys


def main() -> None:
    role, arguments = sys.argv[1], dict(part.split("=", 1) for part in sys.argv[2:])
    if role == "relay":
        from . import relay

        relay.main(keep_stderr=arguments.get("stderr") == "keep")
    elif role == "end":
        from . import relay

        relay.end_box()
    elif role == "pid1":
        from . import pid1

        pid1.main(arguments)
    else:
        sys.exit("usage: warden.pyz pid1|relay|end")


main()
