from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from kts_source.errors import CorruptSegmentError, InvalidOptionError, UnknownKeyError
from kts_source.keyring import KeyRing
from kts_source.secret import Secret
from segment_format.errors import DecryptionError
from segment_format.manifest import encryption
from segment_format.testing.tiers import AivenTierWriter, EncryptionKey
from tests.golden_data import (
    KEY_PREFIX,
    KEYS,
    TIER,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.planning.scanning import scan
from tests.segment_format.manifest.writers import load_public_key, wrap_data_key
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.manifest.encryption import WrappedDataKey

OPTION = "encryption.key.pairs.{}.private.key.{}"
PEMS = {path.name.removesuffix(".private.pem"): path for path in KEYS.glob("*.private.pem")}


def options_without_keys() -> dict[str, str]:
    options = tier_options("encrypted")
    return {name: text for name, text in options.items() if not name.startswith("encryption")}


def from_secret_scope(key_id: str) -> str:
    """Returns a private key, like the callback of a user."""
    return PEMS[key_id].read_text()


def failing_callback(key_id: str) -> str:
    raise RuntimeError("PEM-TEXT-IN-AN-ERROR")


def empty_callback(key_id: str) -> None:
    return None


def test_key_is_read_from_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_without_keys()
    for number, (key_id, path) in enumerate(PEMS.items()):
        monkeypatch.setenv(f"KTS_TEST_KEY_{number}", path.read_text())
        options[OPTION.format(key_id, "env")] = f"KTS_TEST_KEY_{number}"
    assert_same_rows(scan(options), expected_table("encrypted", "read_committed"))


def test_key_is_read_from_callback() -> None:
    options = options_without_keys()
    for key_id in PEMS:
        options[OPTION.format(key_id, "callback")] = f"{__name__}:from_secret_scope"
    assert_same_rows(scan(options), expected_table("encrypted", "read_committed"))


def test_loaded_keys_are_pickled_and_not_shown_in_repr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key_id, path = next(iter(PEMS.items()))
    monkeypatch.setenv("KTS_TEST_KEY", path.read_text())
    ring = KeyRing.from_options({OPTION.format(key_id, "env"): "KTS_TEST_KEY"}).loaded()
    monkeypatch.delenv("KTS_TEST_KEY")
    copy = pickle.loads(pickle.dumps(ring))
    assert copy.pems.reveal() == {key_id: path.read_bytes()}
    assert "PRIVATE KEY" not in repr(copy)


def test_error_names_missing_environment_variable() -> None:
    options = options_without_keys()
    for key_id in PEMS:
        options[OPTION.format(key_id, "env")] = "KTS_NO_SUCH_VARIABLE"
    with pytest.raises(UnknownKeyError, match=r"environment variable named by option"):
        scan(options)


@pytest.mark.parametrize("name", ["failing_callback", "empty_callback"])
def test_error_of_failed_callback_hides_its_message(name: str) -> None:
    ring = KeyRing.from_options({OPTION.format("k", "callback"): f"{__name__}:{name}"})
    with pytest.raises(UnknownKeyError, match=name) as caught:
        ring.loaded()
    assert "PEM-TEXT" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_invalid_key_options_raise_invalid_option_error() -> None:
    with pytest.raises(InvalidOptionError, match="module:function"):
        KeyRing.from_options({OPTION.format("k", "callback"): "no colon"})
    with pytest.raises(InvalidOptionError, match="as file and as env"):
        KeyRing.from_options({OPTION.format("k", "file"): "f", OPTION.format("K", "env"): "E"})


def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def private_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_wrong_key_and_changed_bytes_have_different_errors(tmp_path: Path) -> None:
    tier = shutil.copytree(TIER, tmp_path / "tier")
    log = sorted((tier / KEY_PREFIX).glob("encrypted-*/*/*.log"))[0]
    data = bytearray(log.read_bytes())
    data[1000] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptSegmentError) as changed:
        scan({**tier_options("encrypted"), "path": str(tier)})
    assert "stored bytes were changed" in str(changed.value)

    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(private_pem(private_key()))
    with pytest.raises(UnknownKeyError) as mistaken:
        scan({**tier_options("encrypted"), **{OPTION.format(k, "file"): str(wrong) for k in PEMS}})
    assert "cannot be decrypted with the private key" in str(mistaken.value)
    assert "changed" not in str(mistaken.value)
    assert mistaken.value.uri is not None


def test_data_key_is_decrypted_once_per_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[WrappedDataKey] = []

    def noted(wrapped: WrappedDataKey, key: encryption.PrivateKey) -> bytes:
        opened.append(wrapped)
        return unwrap(wrapped, key)

    unwrap = encryption.unwrap_data_key
    monkeypatch.setattr(encryption, "unwrap_data_key", noted)
    data_key = bytes(range(32))
    key = private_key()
    public = load_public_key(public_pem(key))
    wrapped = wrap_data_key(data_key, key_id="k", public_key=public)
    ring = KeyRing(pems=Secret({"k": private_pem(key)}))
    for copy in (ring, pickle.loads(pickle.dumps(ring))):
        assert copy.unwrap(wrapped) == data_key
    assert opened == [wrapped]
    for _ in range(2):
        with pytest.raises(DecryptionError):
            KeyRing(pems=Secret({"k": private_pem(private_key())})).unwrap(wrapped)
    with pytest.raises(UnknownKeyError):
        KeyRing().unwrap(wrapped)


def test_rotated_key_ring_opens_old_and_new_segments(tmp_path: Path) -> None:
    keys = {"old": private_key(), "new": private_key()}
    offset = 0
    for key_id, key in keys.items():
        writer = AivenTierWriter(
            tmp_path / "tier",
            topic="t",
            topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
            encryption=EncryptionKey(key_id, public_pem(key)),
        )
        batches = write_uniform_batches(
            batch_count=3, records_per_batch=5, value_size=10, base_offset=offset
        )
        writer.write_segment(uniform_segment(batches, log_start=0))
        offset = batches.next_offset
        (tmp_path / f"{key_id}.pem").write_bytes(private_pem(key))
    options = {"path": str(tmp_path / "tier"), "subscribe": "t"}
    both_keys = {OPTION.format(key_id, "file"): str(tmp_path / f"{key_id}.pem") for key_id in keys}
    assert sorted(scan({**options, **both_keys})["offset"].to_pylist()) == list(range(30))
    only_old = {OPTION.format("old", "file"): str(tmp_path / "old.pem")}
    with pytest.raises(UnknownKeyError, match=r"key id 'new'.*the key ring has old"):
        scan({**options, **only_old})
