"""`python -m mxgemm.bench`: the four commands without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from mxgemm.bench import command, compare, figures, report

COMMANDS = {"bench": command, "compare": compare, "figures": figures, "report": report}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m mxgemm.bench")
    commands = parser.add_subparsers(required=True)
    for name, module in COMMANDS.items():
        sub = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    status: int = args.run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
