"""Tests that this product loads only the message classes of kafka-python.

Other code must still be able to import the full package.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOAD = "import sys; from kts_source.broker.sasl import load_messages; load_messages()"
HEAVY = "'kafka.consumer.group' in sys.modules, 'kafka.admin' in sys.modules"


def run(*lines: str, **environment: str) -> str:
    """Runs a program in a new process and returns its output.

    The program consists of `LOAD` and `lines`. `environment` adds environment variables.
    """
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


def test_load_messages_imports_neither_consumer_nor_admin_modules() -> None:
    assert run(f"print({HEAVY})") == "False False"


def test_full_kafka_package_is_imported_if_tuning_is_off() -> None:
    assert run(f"print({HEAVY})", KTS_TUNING="off") == "True True"


@pytest.mark.parametrize(
    "program",
    [
        "from kafka import KafkaConsumer; print(KafkaConsumer.__module__)",
        "import kafka; print(kafka.KafkaConsumer.__module__)",
        "import kafka.consumer; print(kafka.consumer.KafkaConsumer.__module__)",
        "from kafka import *; print(KafkaConsumer.__module__)",
    ],
)
def test_access_to_kafka_consumer_imports_the_full_kafka_package(program: str) -> None:
    assert run(program) == "kafka.consumer.group"


def test_full_kafka_package_is_importable_after_load_messages() -> None:
    text = run(
        "import kafka, types, kafka.protocol.consumer as ours, kafka.errors",
        "before = ours.FetchRequest",
        "print(kafka.__version__ > '3', type(kafka) is types.ModuleType, kafka.errors.KafkaError)",
        "import kafka.protocol.consumer",
        "print(kafka.protocol.consumer.FetchRequest is before, hasattr(kafka, 'nothing'))",
    )
    assert text == "True True <class 'kafka.errors.KafkaError'>\nTrue False"


def test_iterating_over_loaded_modules_does_not_import_kafka() -> None:
    lines = "for module in list(sys.modules.values()): getattr(module, '__warningregistry__', None)"
    assert run(lines, f"print({HEAVY})") == "False False"


def test_concurrent_threads_can_import_kafka_messages() -> None:
    text = run(
        "import threading, kafka",
        "names = []",
        "def use(): names.append(kafka.KafkaProducer.__name__)",
        "threads = [threading.Thread(target=use) for _ in range(8)]",
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]",
        "print(len(names), set(names))",
    )
    assert text == "8 {'KafkaProducer'}"


def test_load_messages_does_not_change_an_imported_kafka_package() -> None:
    text = run(
        "import importlib",
        "for name in [name for name in sys.modules if name.split('.')[0] == 'kafka']:",
        "    del sys.modules[name]",
        "import kafka, types",
        "load_messages()",
        "print(type(sys.modules['kafka']) is types.ModuleType, kafka.KafkaConsumer.__name__)",
    )
    assert text == "True KafkaConsumer"
