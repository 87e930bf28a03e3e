"""The chat panel in a browser: a conversation of 20 messages beside one of 500.

Prints a table and writes ``panel.json`` beside this file. Needs what the browser tests need. Answers are scripted, so
that what is measured is the panel: how long it takes to show the conversation, and how long a frame takes while an
answer is written, once it has ended and the notebook gets its copy, and while a person scrolls through it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import report
from playwright.sync_api import Page, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from front_ends import ARGUMENTS, CHROMIUM, OpenNotebook, Panel, serving

LENGTHS = (20, 500)
SETUP = '''%load_ext llamanb
import llamanb

TEXT = """Some words with `code` and **more**, as models write them.

```python
def area(radius: float) -> float:
    return 3.14159 * radius ** 2
```

- a list
- of two things, and a formula: $x^2$
"""
engine = llamanb.ScriptedEngine(lambda request: TEXT * 20, n_ctx=2_000_000, seconds_per_token=0.004)
sampling = llamanb.SamplingParams(max_tokens=100_000)
session = llamanb.use_session(llamanb.ChatSession(engine, sampling=sampling))
for number in range({n} // 2):
    session.add_message("user", f"Question {{number}}?")
    session.add_message("assistant", TEXT);
'''
FRAMES = """
() => {
  window.frames_seen = [];
  window.counting = true;
  let last = performance.now();
  const step = (now) => {
    window.frames_seen.push(now - last);
    last = now;
    if (window.counting) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
"""


def frames(page: Page) -> list[float]:
    """Stop counting frames and return how long each took, in milliseconds."""
    page.evaluate("window.counting = false")
    found: list[float] = page.evaluate("window.frames_seen")
    return found[2:]


def measure(page: Page, address: str, folder: Path, n_messages: int) -> dict[str, Any]:
    """Measure a panel on a conversation of so many messages."""
    notebook = OpenNotebook(page, address, folder, name=f"chat{n_messages}")
    notebook.write(SETUP.replace("{n}", str(n_messages)).replace("{{", "{").replace("}}", "}"), "%chat_panel")
    notebook.open()
    notebook.run(0)
    notebook.wait_idle()
    started = time.perf_counter()
    notebook.cell(1).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    panel = Panel(page)
    panel.message(n_messages - 1).wait_for()
    shown = time.perf_counter() - started
    panel.send("Begin.")  # JupyterLab loads parts of itself when it first needs them
    panel.message(n_messages + 1).locator(".block").first.wait_for()
    panel.button("Stop").click()
    panel.button("Send").wait_for()
    page.wait_for_timeout(9000)
    page.evaluate(FRAMES)
    panel.send("Go on.")
    panel.message(n_messages + 3).wait_for()
    page.wait_for_timeout(4000)
    writing = frames(page)
    page.evaluate(FRAMES)
    panel.button("Stop").click()
    panel.button("Send").wait_for()
    page.wait_for_timeout(9000)
    ending = frames(page)
    page.evaluate(FRAMES)
    panel.log.evaluate(
        """async (log) => {
          for (let part = 0; part <= 100; part += 1) {
            log.scrollTop = (log.scrollHeight - log.clientHeight) * (1 - part / 100);
            await new Promise(requestAnimationFrame);
          }
        }"""
    )
    scrolling = frames(page)
    return {
        "n_messages": n_messages,
        "shown_seconds": shown,
        "writing_milliseconds": statistics.median(writing),
        "writing_slow_milliseconds": statistics.quantiles(writing, n=100)[-1],
        "ending_slowest_milliseconds": max(ending),
        "scrolling_milliseconds": statistics.median(scrolling),
        "scrolling_slow_milliseconds": statistics.quantiles(scrolling, n=100)[-1],
    }


def main() -> None:
    """Measure, print and write."""
    rows = []
    with (
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory() as own,
        serving(Path(name), Path(own)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for n_messages in LENGTHS:
            page = browser.new_page()
            rows.append(measure(page, address, Path(name), n_messages))
            page.close()
        browser.close()
    columns = {
        "messages": "{n_messages}",
        "from running the cell to all of them": "{shown_seconds:.2f} s",
        "a frame while writing": "{writing_milliseconds:.0f} ms",
        "the slowest of 100": "{writing_slow_milliseconds:.0f} ms",
        "the slowest when it has ended": "{ending_slowest_milliseconds:.0f} ms",
        "a frame while scrolling": "{scrolling_milliseconds:.0f} ms",
        "the slowest of 100 ": "{scrolling_slow_milliseconds:.0f} ms",
    }
    report(__file__, columns, rows)


if __name__ == "__main__":
    main()
