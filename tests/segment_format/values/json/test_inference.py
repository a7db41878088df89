"""Tests which type is inferred from samples."""

from __future__ import annotations

import re

import pytest

from segment_format.values.json.ddl import infer, print_ddl


@pytest.mark.parametrize(
    ("samples", "ddl"),
    [
        ([b'{"a":1}', b'{"b":"x","a":2}'], "a bigint, b string"),
        ([b'{"a":1}', b'{"a":1.5}'], "a double"),
        ([b'{"a":1e3}', b'{"a":2}'], "a double"),
        ([b'{"a":true,"n":null}', b'{"a":null}'], "a boolean"),
        ([b'{"a":[1,null,2.5]}', b'{"a":[]}'], "a array<double>"),
        ([b'{"a":[{"x":1},{"y":"z"}]}'], "a array<struct<x: bigint, y: string>>"),
        ([b'{"a":{"b":{"c":1}}}', b'{"a":null}', b'{"a":{"b":{"d":2}}}'],
         "a struct<b: struct<c: bigint, d: bigint>>"),
        ([b'{"a":1,"e":[],"o":{},"l":[[]],"m":[{}]}'], "a bigint"),
        ([None, b"null", b"no json", b"\xff", b'{"a":NaN}', b'"\\ud800"', b'{"a":1}'], "a bigint"),
        ([b'{"a":9223372036854775807}'], "a bigint"),
        ([b'{"a":9223372036854775808}'], "a double"),
        ([b'{"a":' + b"1" * 10_000 + b"}"], "a double"),
        ([b"1", b"2"], "bigint"),
        ([b'"x"'], "string"),
        ([b"[[1],[]]"], "array<array<bigint>>"),
    ],
)  # fmt: skip
def test_infer_returns_type_of_samples(samples: list[bytes | None], ddl: str) -> None:
    assert print_ddl(infer(samples)) == ddl


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([b'{"a":1}', b'{"a":"x"}'], "a is an integer in some samples and a string in others"),
        ([b'{"a":{"b":1}}', b'{"a":{"b":[1]}}'], "a.b is an integer in some samples and an array"),
        ([b"[1,true]"], "the value is an integer in some samples and a boolean in others"),
        ([b'{"a":{}}', b'{"a":1.5}'], "a is an object in some samples and a number in others"),
        ([], "there is no sample"),
        ([None], "there is no sample"),
        ([b"{", b"x"], "no sample is valid JSON"),
        ([b"{}", b"null"], "all samples are null or empty"),
        ([b"[" * 150 + b"]" * 150], "nested more than 100 levels"),
        ([b"{" + b",".join(b'"%d":1' % i for i in range(5001)) + b"}"], "more than 5000 fields"),
        ([b"[" * 100_000], "no sample is valid JSON"),
    ],
)
def test_infer_raises_if_samples_have_no_usable_type(
    samples: list[bytes | None], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        infer(samples)
