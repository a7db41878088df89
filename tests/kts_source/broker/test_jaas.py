from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.broker.kafka_options import parse_jaas
from kts_source.errors import InvalidOptionError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OTHERS = {
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
    "software.amazon.msk.auth.iam.IAMLoginModule": ("AWS_MSK_IAM",),
    "com.sun.security.auth.module.Krb5LoginModule": ("GSSAPI",),
    PLAIN: ("PLAIN",),
    SCRAM: ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
# Escapes of Java's StreamTokenizer, which Kafka uses to parse the option.
CONTROLS = {"\a": "a", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v"}


def quote_value(value: str, quote: str) -> str:
    inner = "".join(
        f"\\{CONTROLS[c]}" if c in CONTROLS else f"\\{c}" if c in ("\\", quote) else c
        for c in value
    )
    return f"{quote}{inner}{quote}"


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("prefix", ["", "kafkashaded.", "shadedmskiam."])
@pytest.mark.parametrize("flag", ["required", "REQUIRED", "optional"])
def test_jaas_login_module_is_mapped_to_its_sasl_mechanisms(
    name: str, prefix: str, flag: str
) -> None:
    module = parse_jaas(f"{prefix}{name} {flag};")
    assert module.mechanisms == OTHERS[name]
    assert module.options == {}


names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_$]{0,9}", fullmatch=True)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
blanks = st.sampled_from([" ", "\n", "\t", '  // of no concern; "\n', ' /* nor="this"; */ '])


@given(st.dictionaries(names, st.tuples(values, st.sampled_from("\"'")), max_size=5), st.data())
def test_quoted_jaas_values_round_trip(
    options: dict[str, tuple[str, str]], data: st.DataObject
) -> None:
    text = f"{SCRAM}{data.draw(blanks)}required"
    for name, (value, quote) in options.items():
        gap = data.draw(st.sampled_from(["", " "]))
        text += f"{data.draw(blanks)}{name}{gap}={gap}{quote_value(value, quote)}"
    module = parse_jaas(f"{text}{data.draw(st.sampled_from(['', ' ']))};\n")
    assert module.options == {name: value for name, (value, _) in options.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\101\7\18"', "A\a\x018"),
        (r'"\477\0"', "'7\0"),  # three digits up to \377 only
        (r'"\x\q"', "xq"),
        ("word-1.x_$", "word-1.x_$"),
        ("true", "true"),
        ("'say \"hi\"'", 'say "hi"'),
        ('"a;b=c // d"', "a;b=c // d"),
    ],
)
def test_escapes_in_jaas_option_values_are_resolved(text: str, value: str) -> None:
    assert parse_jaas(f"{PLAIN} required password={text};").options == {"password": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  // only this", "is empty"),
        ("hunter2", "must begin with one of the login modules"),
        ("com.evil.HunterLoginModule required;", "must begin with one of the login modules"),
        (f'"{PLAIN}" required;', "must begin with one of the login modules"),
        (PLAIN, "must have 'required'"),
        (f"{PLAIN};", "must have 'required'"),
        (f'{PLAIN} username="hunter2";', "must have 'required'"),
        (f"{PLAIN} required", "end with a semicolon"),
        (f'{PLAIN} required password="hunter2"', "end with a semicolon"),
        (f'{PLAIN} required password="hunter2', "not closed at character"),
        (f'{PLAIN} required password="hunter2\n";', "not closed at character"),
        (f"{PLAIN} required password=hunter2@x;", "needs quotes at character"),
        (f'{PLAIN} required password "hunter2";', "in its option number 1"),
        (f"{PLAIN} required password=;", "in its option number 1"),
        (f'{PLAIN} required a="b" hunter2;', "in its option number 2"),
        (f'{PLAIN} required password="a"hunter2";', "not closed"),
        (f'{PLAIN} required "hunter2"="b";', "an invalid option name"),
        (f"{PLAIN} required a=b a=hunter2;", "number 2 repeats a name"),
        (f"{PLAIN} required hunter2=b hunter2=c;", "number 2 repeats a name"),
        (f"{PLAIN} required; {SCRAM} required;", "one login module"),
        (f"{PLAIN} required;;", "one login module"),
        (f"{PLAIN} required password=hunter2; hunter2", "one login module"),
        (f"{PLAIN} required /* hunter2;", "needs quotes"),
    ],
)
def test_invalid_jaas_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message) as caught:
        parse_jaas(text)
    assert "kafka.sasl.jaas.config" in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text(max_size=40))
def test_any_jaas_text_is_parsed_or_refused(text: str) -> None:
    for config in (text, f"{PLAIN} required {text}", f'{PLAIN} required a="{text}";'):
        try:
            parse_jaas(config)
        except InvalidOptionError:
            continue
