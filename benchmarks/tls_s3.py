"""Measures scans from an S3 server over TLS, next to the same scans over plain HTTP.

nginx terminates TLS in front of versitygw, because it writes TLS records of 16 KiB as S3 does. The
TLS of versitygw itself writes records of 4 KiB, which takes clients three times as long to decrypt.
Plain HTTP goes through the same nginx. Only the processor time of the client is compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kts_source
from benchmarks.bench import SkippedError, Timings
from benchmarks.fetch_s3 import gateway, paced, s3_options, server_program, upload
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import NEWEST, Query, Session
from benchmarks.tiers import TierShape, make_tier
from tests.integration.certificates import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.bench import Bench
    from benchmarks.tiers import Tier

_FAR: Final = (0.06, 90e6)
_RECORD_BYTES: Final = 16 << 10
_CIPHER: Final = "aes-256-gcm"  # OpenSSL's first choice in TLS 1.3
_TASKS: Final = 12
_SCAN_GOALS: Final = {100: 1.25, 1000: 1.5}
"""Most processor time of a scan over TLS by that from a folder, by bytes of a value."""
_CONFIGURATION: Final = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 0;
  keepalive_requests 1000000;
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  ssl_session_cache shared:tls:10m;
  ssl_buffer_size 16k;
  ssl_protocols TLSv1.2 TLSv1.3;
  upstream s3 {{ server 127.0.0.1:{upstream}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl;
    location / {{
      proxy_pass http://s3;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffers 16 64k;
      proxy_max_temp_file_size 0;
    }}
  }}
}}
"""


def run(bench: Bench) -> list[Row]:
    """Reads the same tiers over TLS, over plain HTTP and from a folder, without and with Spark.

    Raises:
        SkippedError: versitygw, nginx or openssl is not installed.
    """
    bench.need("nginx", "openssl")
    program = server_program()
    if program is None:
        raise SkippedError("versitygw is missing: install Go, then run `make bench`")
    return [row for size in _SCAN_GOALS for row in _rows(bench, program, size)]


def _rows(bench: Bench, program: str, value_bytes: int) -> list[Row]:
    log_bytes, segment_bytes = (64 << 20, 5 << 20) if bench.quick else (768 << 20, 64 << 20)
    tier = make_tier(TierShape(value_bytes, log_bytes, partitions=6, segment_bytes=segment_bytes))
    label = "100 B" if value_bytes == 100 else "1 KB"
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data, settings = root / "data", root / "nginx"
        data.mkdir()
        port, _ = stack.enter_context(gateway(program, data))
        upload(port, tier)
        certificates = make_certificates(root / "certificates")
        plain, tls = stack.enter_context(terminated(port, settings, certificates.broker))
        stack.enter_context(_trusted(certificates.authority))
        ports = {
            "plain": plain,
            "TLS": tls,
            "plain, far": stack.enter_context(paced(plain, _FAR)),
            "TLS, far": stack.enter_context(paced(tls, _FAR)),
        }
        options = {
            name: s3_options(tier, port)
            | ({"s3.endpoint": f"https://127.0.0.1:{port}"} if name.startswith("TLS") else {})
            for name, port in ports.items()
        }
        return [
            *_without_spark(bench, tier, options, label),
            *_with_spark(bench, tier, options, label),
        ]


def _rounds(bench: Bench) -> int:
    return 1 if bench.quick else 3


def _without_spark(
    bench: Bench, tier: Tier, options: Mapping[str, Mapping[str, str]], label: str
) -> list[Row]:
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in options}
    for number in range(_rounds(bench) + 1):
        for name in options:
            times = _read_all(options[name], tier.records)
            if number:  # the first round is a warm-up
                runs[name].append(times)
    gigabytes = tier.stored_bytes / 1e9
    # The shortest times, because other load on the machine only adds processor time.
    costs = {name: min(own for _, own in times) / gigabytes for name, times in runs.items()}
    far = zip(runs["plain, far"], runs["TLS, far"], strict=True)
    share = statistics.median(plain[0] / tls[0] for plain, tls in far)
    aes = seconds_per_gigabyte()
    return [
        at_most(
            f"scan().to_reader(), {label}: processor time of TLS in addition to plain HTTP",
            costs["TLS"] - costs["plain"],
            "s/GB",
            0.45,
        ).noted(
            f"one thread, decoding included: {costs['TLS']:.2f} and {costs['plain']:.2f} s/GB;"
            f" bound: {_CIPHER} alone takes {aes:.2f}"
        ),
        at_least(
            f"scan().to_reader(), {label}, with 60 ms and 90 MB/s: TLS by plain HTTP, speed",
            share,
            "×",
            0.9,
        ).noted("one thread; both through the same proxy on the same cores"),
    ]


def _with_spark(
    bench: Bench, tier: Tier, options: Mapping[str, Mapping[str, str]], label: str
) -> list[Row]:
    target = {"targetPartitionBytes": str(tier.shape.log_bytes // _TASKS)}
    queries = {
        name: Query("tiered-kafka", {**source, **target})
        for name, source in {"a folder": tier.options, **options}.items()
        if not name.endswith("far")
    }
    runs: dict[str, list[Timings]] = {name: [] for name in queries}
    # A session of its own, because workers learn from their environment which authority to trust.
    with contextlib.closing(Session(NEWEST, unix_sockets=True)) as session:
        for number in range(_rounds(bench) + 1):
            for name, query in queries.items():
                measured = Timings((session.run(query),))
                bench.say(f"{label}, {name}: {measured.seconds:.2f} s")
                if number:  # the first round is a warm-up
                    runs[name].append(measured)
    timings = {name: Timings(tuple(t.runs[0] for t in each)) for name, each in runs.items()}
    folder = timings["a folder"]
    nanoseconds = {name: t.processor / tier.records * 1e9 for name, t in timings.items()}
    return [
        at_most(
            f"Spark scan, {label}, over TLS: processor time by that from a folder",
            timings["TLS"].processor_share_of(folder),
            "×",
            _SCAN_GOALS[tier.shape.value_bytes],
        ).noted(
            f"JVM and Python: {nanoseconds['TLS']:.0f} ns a record over TLS,"
            f" {nanoseconds['plain']:.0f} over plain HTTP, {nanoseconds['a folder']:.0f} from a"
            f" folder; plain HTTP and {_CIPHER} alone:"
            f" {_bound(timings['plain'], folder, tier):.2f} ×"
        )
    ]


def _bound(plain: Timings, folder: Timings, tier: Tier) -> float:
    """Returns the processor time of plain HTTP and of decryption alone, by that from a folder."""
    decryption = seconds_per_gigabyte() * tier.stored_bytes / 1e9
    return (plain.processor + decryption) / folder.processor


def _read_all(options: Mapping[str, str], records: int) -> tuple[float, float]:
    """Reads all rows. Returns wall seconds and processor seconds of this process."""
    began, own = time.perf_counter(), time.process_time()
    with kts_source.scan(options).to_reader(threads=1) as reader:
        assert sum(batch.num_rows for batch in reader) == records
    return time.perf_counter() - began, time.process_time() - own


def seconds_per_gigabyte() -> float:
    """Returns the processor seconds that OpenSSL takes to decrypt a gigabyte in TLS records."""
    command = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(_RECORD_BYTES)]
    command += ["-evp", _CIPHER, "-decrypt"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # The line `+F:number:cipher:bytes per second`.
    speed = next(line for line in output.splitlines() if line.startswith("+F:")).rpartition(":")[2]
    return 1e9 / float(speed)


@contextlib.contextmanager
def terminated(upstream: int, folder: Path, certificate: Path) -> Iterator[tuple[int, int]]:
    """Runs nginx in front of a server. Yields the ports of plain HTTP and of TLS."""
    folder.mkdir()
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        plain, tls = int(one.getsockname()[1]), int(two.getsockname()[1])
    names = {"folder": folder, "certificate": certificate, "upstream": upstream}
    configuration = folder / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(**names, plain=plain, tls=tls))
    program = shutil.which("nginx")
    assert program is not None
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(configuration)])
    try:
        for port in (plain, tls):
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
        yield plain, tls
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def _trusted(authority: Path) -> Iterator[None]:
    """Makes this process and the sessions that it starts trust a certificate authority."""
    before = os.environ.get("AWS_CA_BUNDLE")
    os.environ["AWS_CA_BUNDLE"] = str(authority)
    try:
        yield
    finally:
        if before is None:
            del os.environ["AWS_CA_BUNDLE"]
        else:
            os.environ["AWS_CA_BUNDLE"] = before
