"""Import time: how long `%load_ext llamanb` takes in a plain kernel, beside two imports that a notebook starts with.

Each is run in kernels of its own, which have imported nothing. Prints a table of medians and writes
``import_time.json`` beside this file.
"""

from __future__ import annotations

import ast
import statistics

from jupyter_client.manager import start_new_kernel
from measuring import report

N_ROUNDS = 7
STATEMENTS = {
    "%load_ext llamanb": "get_ipython().run_line_magic('load_ext', 'llamanb')",
    "import ipywidgets": "import ipywidgets",
    "import numpy": "import numpy",
}
TIMED = """
import sys, time
started = time.perf_counter()
{statement}
took = time.perf_counter() - started
model_code = 'llama_cpp' in sys.modules
"""


def measure(statement: str) -> tuple[float, bool]:
    """Return the seconds that a statement takes in a new kernel, and whether it has loaded code of the model."""
    manager, client = start_new_kernel()
    try:
        client.execute_interactive(TIMED.format(statement=statement), store_history=False, timeout=60)
        reply = client.execute(
            "", silent=True, user_expressions={"found": "(took, model_code)"}, reply=True, timeout=60
        )
        took, model_code = ast.literal_eval(reply["content"]["user_expressions"]["found"]["data"]["text/plain"])
        return float(took), bool(model_code)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    """Measure, print and write."""
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in STATEMENTS}
    for _ in range(N_ROUNDS):
        for name, statement in STATEMENTS.items():
            found[name].append(measure(statement))
    rows = [
        {
            "statement": name,
            "milliseconds": statistics.median(took for took, _ in times) * 1e3,
            "model_code": "yes" if any(loaded for _, loaded in times) else "no",
        }
        for name, times in found.items()
    ]
    columns = {"": "{statement}", "takes": "{milliseconds:.0f} ms", "loads llama_cpp": "{model_code}"}
    report(__file__, columns, rows)


if __name__ == "__main__":
    main()
