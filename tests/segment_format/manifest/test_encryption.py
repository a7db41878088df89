from __future__ import annotations

import base64
import hashlib
import json
import logging
import pickle
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import DecryptionError, InvalidManifestError
from segment_format.manifest.encryption import (
    PrivateKey,
    WrappedDataKey,
    decrypt,
    load_private_key,
    unwrap_data_key,
)
from tests.golden_data import KEYS, VECTORS
from tests.needs import needs
from tests.segment_format.manifest.writers import encrypt, load_public_key, wrap_data_key
from tests.segment_format.outcomes import value_or_error

AIVEN = VECTORS / "aiven_vectors"
VECTOR_PEM = (AIVEN / "keys" / "priv.pem").read_bytes()
VECTOR_PUBLIC_PEM = (AIVEN / "keys" / "pub.pem").read_bytes()
VECTOR_KEY = load_private_key(VECTOR_PEM)
GOLDEN_KEY = load_private_key((KEYS / "key1.private.pem").read_bytes())
DATA_KEYS = {
    "aes": "87807776e61bd30736efd2114b5434e5da5c49f12925146972b2d30308e1bb9c",
    "aes-exact": "ba3760104770765a16250ccb64ae7bb47ad5e1c89c17f1421c24caf07eb2ae3d",
    "zstd-aes": "f40d31e6e4091de419e43bb9b572142a6dfe231c1a4aef5774a5d8de47ba3e42",
}
DATA_KEY = bytes(range(32))


@pytest.fixture(scope="module")
def other_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem_of(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
    password: bytes | None = None,
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        form,
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password),
    )


def wrapped_in(case: str) -> WrappedDataKey:
    (path,) = (AIVEN / "objects" / case).rglob("*.rsm-manifest")
    return WrappedDataKey.from_text(json.loads(path.read_text())["encryption"]["dataKey"])


@pytest.mark.parametrize("case", DATA_KEYS)
def test_wrapped_data_key_of_test_vector_is_decrypted(case: str) -> None:
    wrapped = wrapped_in(case)
    assert wrapped.key_id == "key1"
    assert unwrap_data_key(wrapped, VECTOR_KEY).hex() == DATA_KEYS[case]


def test_wrapped_data_key_round_trips() -> None:
    public = load_public_key(VECTOR_PUBLIC_PEM)
    wrapped = wrap_data_key(DATA_KEY, key_id="key1", public_key=public)
    again = wrap_data_key(DATA_KEY, key_id="key1", public_key=VECTOR_KEY.public_key)
    assert wrapped.ciphertext != again.ciphertext
    assert unwrap_data_key(wrapped, VECTOR_KEY) == unwrap_data_key(again, VECTOR_KEY) == DATA_KEY


def test_data_key_round_trips_through_openssl() -> None:
    needs("openssl")
    options = ["rsa_padding_mode:oaep", "rsa_oaep_md:sha3-512", "rsa_mgf1_md:sha3-512"]
    flags = [word for option in options for word in ("-pkeyopt", option)]
    wrapped = wrap_data_key(DATA_KEY, key_id="key1", public_key=VECTOR_KEY.public_key)
    key = AIVEN / "keys" / "priv.pem"
    opened = subprocess.run(
        ["openssl", "pkeyutl", "-decrypt", "-inkey", str(key), *flags],
        input=wrapped.ciphertext,
        capture_output=True,
        check=True,
    )
    assert opened.stdout == DATA_KEY
    public = AIVEN / "keys" / "pub.pem"
    sealed = subprocess.run(
        ["openssl", "pkeyutl", "-encrypt", "-pubin", "-inkey", str(public), *flags],
        input=DATA_KEY,
        capture_output=True,
        check=True,
    )
    assert unwrap_data_key(WrappedDataKey("key1", sealed.stdout), VECTOR_KEY) == DATA_KEY


def test_wrong_private_key_raises() -> None:
    with pytest.raises(DecryptionError, match="'key1'"):
        unwrap_data_key(wrapped_in("aes"), GOLDEN_KEY)


def test_data_key_wrapped_for_a_shorter_private_key_raises() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    with pytest.raises(DecryptionError, match="has 256 bytes, but this RSA key produces 384"):
        unwrap_data_key(wrapped_in("aes"), load_private_key(pem_of(key)))


def test_changed_wrapped_key_raises() -> None:
    wrapped = wrapped_in("aes")
    for position in (0, 100, 255):
        changed = bytearray(wrapped.ciphertext)
        changed[position] ^= 1
        with pytest.raises(DecryptionError):
            unwrap_data_key(WrappedDataKey("key1", bytes(changed)), VECTOR_KEY)
    for ciphertext in (b"", b"\0" * 256, b"\xff" * 256, wrapped.ciphertext[:-1]):
        with pytest.raises(DecryptionError):
            unwrap_data_key(WrappedDataKey("key1", ciphertext), VECTOR_KEY)


def oaep(message: bytes, *, label: bytes = b"", first: int = 0, filler: int = 0) -> int:
    """Returns the OAEP block of a message for a 256-byte RSA key (RFC 8017). The block is valid
    only if `label`, `first` and `filler` have their default values.
    """

    def mask(seed: bytes, size: int) -> bytes:
        blocks = [hashlib.sha3_512(seed + bytes([0, 0, 0, count])).digest() for count in range(4)]
        return b"".join(blocks)[:size]

    def xor(left: bytes, right: bytes) -> bytes:
        return bytes(a ^ b for a, b in zip(left, right, strict=True))

    seed = bytes(range(64))
    block = hashlib.sha3_512(label).digest() + bytes([filler]) * (127 - len(message) - 65)
    block += b"\0" * (127 + 64 - len(block) - 1 - len(message)) + b"\1" + message
    masked = xor(block, mask(seed, len(block)))
    encoded = bytes([first]) + xor(seed, mask(masked, 64)) + masked
    assert len(encoded) == 256
    return int.from_bytes(encoded, "big")


def test_data_key_with_wrong_padding_raises() -> None:
    def opened(block: int) -> bytes:
        public = VECTOR_KEY.public_key
        ciphertext = pow(block, public.public_exponent, public.modulus).to_bytes(256, "big")
        return unwrap_data_key(WrappedDataKey("key1", ciphertext), VECTOR_KEY)

    assert opened(oaep(DATA_KEY)) == DATA_KEY
    for block in (
        oaep(DATA_KEY, label=b"label"),
        oaep(DATA_KEY, first=1),
        oaep(DATA_KEY, filler=7),
    ):
        with pytest.raises(DecryptionError, match="cannot be decrypted"):
            opened(block)
    for message in (b"", DATA_KEY[:16], DATA_KEY + b"x"):
        with pytest.raises(DecryptionError, match=f"data key has {len(message)} bytes"):
            opened(oaep(message))


def test_short_rsa_key_raises() -> None:
    pem = pem_of(rsa.generate_private_key(public_exponent=65537, key_size=1024))
    key = load_private_key(pem)
    with pytest.raises(DecryptionError, match="too short"):
        unwrap_data_key(WrappedDataKey("k", bytes(128)), key)


def test_text_of_wrapped_data_key_parses() -> None:
    wrapped = WrappedDataKey.from_text("id:AAECAw==")
    assert wrapped == WrappedDataKey("id", bytes([0, 1, 2, 3]))
    assert wrapped.to_text() == "id:AAECAw=="


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAECAw==",
        "xx::AAECAw==",
        "xx:AAECAw==:xx",
        "id:INVALIDBASE64",
        "id:",
        ":",
        ":AAECAw==",
        "  :AAECAw==",
        "id:AAECAw",
        "id:AA EC Aw==",
        "id:ÄAECAw==",
        "id:_-8=",
        "id:" + "A" * 100_000,
    ],
)
def test_invalid_data_key_text_raises(text: str) -> None:
    with pytest.raises(InvalidManifestError):
        WrappedDataKey.from_text(text)


@pytest.mark.parametrize(
    "wrapped", [WrappedDataKey("a:b", b"x"), WrappedDataKey(" ", b"x"), WrappedDataKey("k", b"")]
)
def test_writing_data_key_with_invalid_id_or_without_bytes_raises(wrapped: WrappedDataKey) -> None:
    with pytest.raises(InvalidManifestError):
        wrapped.to_text()


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_data_key_text_parses_or_raises(text: str) -> None:
    outcome = value_or_error(lambda: WrappedDataKey.from_text(text))
    if isinstance(outcome, WrappedDataKey):
        assert WrappedDataKey.from_text(outcome.to_text()) == outcome


@pytest.mark.parametrize("label", ["PRIVATE KEY", "RSA PRIVATE KEY", "ANYTHING AT ALL", ""])
def test_pem_label_is_ignored(label: str) -> None:
    pem = VECTOR_PEM.replace(b" PRIVATE KEY-", f" {label}-".encode())
    assert load_private_key(b"a comment\n" + pem.replace(b"\n", b"\r\n") + b"\n") == VECTOR_KEY


def test_private_key_in_unsupported_format_raises_with_advice(other_key: rsa.RSAPrivateKey) -> None:
    pkcs1 = pem_of(other_key, serialization.PrivateFormat.TraditionalOpenSSL)
    with pytest.raises(DecryptionError, match=r"PKCS#1.*openssl pkcs8"):
        load_private_key(pkcs1)
    with pytest.raises(DecryptionError, match=r"PKCS#1.*openssl pkcs8"):
        load_private_key(pkcs1.replace(b" RSA PRIVATE KEY", b" PRIVATE KEY"))
    encrypted = pem_of(other_key, password=b"secret")
    with pytest.raises(DecryptionError, match=r"encrypted.*openssl pkcs8"):
        load_private_key(encrypted)
    with pytest.raises(DecryptionError, match=r"encrypted.*openssl pkcs8"):
        load_private_key(encrypted.replace(b" ENCRYPTED PRIVATE KEY", b" PRIVATE KEY"))
    old = pem_of(other_key, serialization.PrivateFormat.TraditionalOpenSSL, b"secret")
    with pytest.raises(DecryptionError, match="PEM headers"):
        load_private_key(old)
    with pytest.raises(DecryptionError, match="not an RSA key"):
        load_private_key(pem_of(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(DecryptionError, match="PKCS#8"):
        load_private_key(VECTOR_PUBLIC_PEM)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"not a key",
        b"-----BEGIN X-----\n-----END X-----",
        b"-----BEGIN X-----\n????\n-----END X-----",
        b"-----BEGIN X-----\nAAA\n-----END X-----",
        b"-----BEGIN X-----\nMAA=\n-----END Y-----",
        b"-----BEGIN X-----\n" + base64.b64encode(b"\x30\x84\xff") + b"\n-----END X-----",
        b"-----BEGIN X-----\n"
        + base64.b64encode(b"\x30\x05\x02\x01\x00\x30")
        + b"\n-----END X-----",
        VECTOR_PEM[:-40],
        VECTOR_PEM + bytes(1 << 17),
    ],
)
def test_invalid_key_file_raises(pem: bytes) -> None:
    with pytest.raises(DecryptionError):
        load_private_key(pem)


@settings(deadline=None)
@given(st.data())
def test_changed_key_file_parses_or_raises(data: st.DataObject) -> None:
    changed = bytearray(VECTOR_PEM)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    assert value_or_error(lambda: load_private_key(bytes(changed))) is not None


def secret_numbers(pem: bytes) -> list[int]:
    key = serialization.load_pem_private_key(pem, password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    numbers = key.private_numbers()
    return [numbers.d, numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp]


def shows_secret(text: str) -> bool:
    body = VECTOR_PEM.decode().split("-----")[2].split()
    numbers = secret_numbers(VECTOR_PEM)
    return any(line in text for line in body) or any(
        form in text for number in numbers for form in (str(number), f"{number:x}")
    )


def test_private_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert shows_secret(VECTOR_PEM.decode())  # the check finds a key that is shown
    assert shows_secret(str(secret_numbers(VECTOR_PEM)))
    with caplog.at_level(logging.DEBUG):
        logging.getLogger(__name__).info("%s %r %s", VECTOR_KEY, VECTOR_KEY, [VECTOR_KEY])
    assert "PrivateKey(2048 bits, ***)" in caplog.text
    assert not shows_secret(caplog.text)
    assert not shows_secret(f"{VECTOR_KEY} {VECTOR_KEY!r} {VECTOR_KEY.public_key!r}")
    with pytest.raises(TypeError):
        json.dumps(VECTOR_KEY)
    with pytest.raises(TypeError):
        vars(VECTOR_KEY)


def test_errors_do_not_quote_private_key() -> None:
    broken = VECTOR_PEM.replace(b"\n", b"!\n", 5)
    with pytest.raises(DecryptionError) as of_file:
        load_private_key(broken)
    with pytest.raises(DecryptionError) as of_key:
        unwrap_data_key(WrappedDataKey("key1", bytes(256)), VECTOR_KEY)
    for caught in (of_file, of_key):
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        assert not shows_secret(repr(caught.value) + str(caught.value))


def test_private_key_pickles() -> None:
    copy = pickle.loads(pickle.dumps(VECTOR_KEY))
    assert isinstance(copy, PrivateKey)
    assert copy == VECTOR_KEY
    assert hash(copy) == hash(VECTOR_KEY)
    assert copy != GOLDEN_KEY
    assert unwrap_data_key(wrapped_in("aes"), copy).hex() == DATA_KEYS["aes"]


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(min_size=32, max_size=32), st.binary(max_size=40))
def test_encrypted_message_round_trips(plaintext: bytes, data_key: bytes, aad: bytes) -> None:
    message = encrypt(plaintext, data_key=data_key, aad=aad)
    assert len(message) == len(plaintext) + 28
    assert decrypt(message, data_key=data_key, aad=aad) == plaintext
    assert decrypt(memoryview(message), data_key=data_key, aad=aad) == plaintext


def test_message_of_nist_test_vector_is_decrypted() -> None:
    # NIST's GCM test case 16: key, IV, AAD, plaintext and tag are published.
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    iv = bytes.fromhex("cafebabefacedbaddecaf888")
    aad = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    plaintext = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    message = encrypt(plaintext, data_key=key, aad=aad, iv=iv)
    assert message[:12] == iv
    assert message[-16:].hex() == "76fc6ece0f4e1768cddf8853bb2d551b"
    assert decrypt(message, data_key=key, aad=aad) == plaintext


def test_encrypted_messages_have_unique_ivs() -> None:
    ivs = {encrypt(b"x", data_key=DATA_KEY, aad=b"")[:12] for _ in range(50)}
    assert len(ivs) == 50


def test_encrypted_message_with_changed_byte_raises() -> None:
    message = encrypt(b"some bytes of a segment", data_key=DATA_KEY, aad=b"aad")
    for position in range(len(message)):
        changed = bytearray(message)
        changed[position] ^= 0x40
        with pytest.raises(DecryptionError, match="wrong key, or changed bytes"):
            decrypt(bytes(changed), data_key=DATA_KEY, aad=b"aad")


@pytest.mark.parametrize("size", [0, 1, 12, 27])
def test_encrypted_message_below_minimum_size_raises(size: int) -> None:
    with pytest.raises(DecryptionError, match="at least 28"):
        decrypt(bytes(size), data_key=DATA_KEY, aad=b"")


def test_decryption_with_wrong_key_or_aad_fails() -> None:
    message = encrypt(b"some bytes", data_key=DATA_KEY, aad=b"aad")
    with pytest.raises(DecryptionError, match="changed bytes"):
        decrypt(message, data_key=DATA_KEY[::-1], aad=b"aad")
    with pytest.raises(DecryptionError, match="changed bytes"):
        decrypt(message, data_key=DATA_KEY, aad=b"other")
    with pytest.raises(DecryptionError, match="16 bytes"):
        decrypt(message, data_key=DATA_KEY[:16], aad=b"aad")
