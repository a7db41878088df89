"""Of kafka-python only the messages are loaded, and whoever wants the rest gets it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOAD = "import sys; from kts_source.broker.protocol_library import load_messages; load_messages()"
HEAVY = "'kafka.consumer.group' in sys.modules, 'kafka.admin' in sys.modules"


def run(*lines: str, **environment: str) -> str:
    """What a fresh process prints."""
    program = "\n".join((LOAD, *lines))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_only_messages_are_loaded() -> None:
    assert run(f"print({HEAVY})") == "False False"


def test_with_the_shortcut_off_all_is_loaded() -> None:
    assert run(f"print({HEAVY})", KTS_TUNING="off") == "True True"


@pytest.mark.parametrize(
    "wanted",
    [
        "from kafka import KafkaConsumer; print(KafkaConsumer.__module__)",
        "import kafka; print(kafka.KafkaConsumer.__module__)",
        "import kafka.consumer; print(kafka.consumer.KafkaConsumer.__module__)",
        "from kafka import *; print(KafkaConsumer.__module__)",
    ],
)
def test_who_wants_the_rest_gets_it(wanted: str) -> None:
    assert run(wanted) == "kafka.consumer.group"


def test_the_package_is_itself_afterwards() -> None:
    text = run(
        "import kafka, types, kafka.protocol.consumer as ours, kafka.errors",
        "before = ours.FetchRequest",
        "print(kafka.__version__ > '3', type(kafka) is types.ModuleType, kafka.errors.KafkaError)",
        "import kafka.protocol.consumer",
        "print(kafka.protocol.consumer.FetchRequest is before, hasattr(kafka, 'nothing'))",
    )
    assert text == "True True <class 'kafka.errors.KafkaError'>\nTrue False"


def test_who_looks_through_all_modules_loads_nothing() -> None:
    lines = "for module in list(sys.modules.values()): getattr(module, '__warningregistry__', None)"
    assert run(lines, f"print({HEAVY})") == "False False"


def test_threads_that_want_it_at_once_all_get_it() -> None:
    text = run(
        "import threading, kafka",
        "found = []",
        "def want(): found.append(kafka.KafkaProducer.__name__)",
        "threads = [threading.Thread(target=want) for _ in range(8)]",
        "[one.start() for one in threads]; [one.join() for one in threads]",
        "print(len(found), set(found))",
    )
    assert text == "8 {'KafkaProducer'}"


def test_a_package_that_is_loaded_already_stays_as_it_is() -> None:
    text = run(
        "import importlib",
        "for name in [one for one in sys.modules if one.split('.')[0] == 'kafka']:",
        "    del sys.modules[name]",
        "import kafka, types",
        "load_messages()",
        "print(type(sys.modules['kafka']) is types.ModuleType, kafka.KafkaConsumer.__name__)",
    )
    assert text == "True KafkaConsumer"
