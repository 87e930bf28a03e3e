"""`python -m llamanb run NOTEBOOK -o OUT`, and `python -m llamanb reference`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from llamanb.errors import LlamanbError
from llamanb.runner import describe, run


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0; 1 a cell failed; 2 the call was wrong; 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m llamanb", description="Conversations with local models.")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="execute a notebook and fold its conversations into its metadata")
    running.add_argument("notebook", type=Path, metavar="IN", help="the notebook to execute")
    running.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="where to write the result")
    running.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds that one cell may take (600); 0: no limit"
    )
    commands.add_parser("reference", help="print the help of all magics, as it stands in the README")
    options = parser.parse_args(arguments)
    if options.command == "reference":
        from llamanb.magics.reference import reference

        sys.stdout.write(reference())
        return 0
    try:
        document = run(options.notebook, options.out, timeout=options.timeout or None)
    except LlamanbError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"{interrupt or 'Interrupted.'}\n")
        return 130  # as a shell reports a process that ends by SIGINT
    sys.stdout.write(f"{describe(document) or 'Nothing was said.'}\n\n")
    sys.stdout.write(f"The executed notebook, with the conversation in it: {options.out}\n")
    sys.stdout.write(f"Open it:  {shlex.quote(sys.executable)} -m jupyterlab {shlex.quote(str(options.out))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
