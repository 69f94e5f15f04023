from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_celery.errors import StoreError, TooLarge
from prorl_celery.store.blobs import PLAIN, ZSTD, pack, pack_json, seal, unpack, unpack_json, unseal

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_what_is_packed_comes_back(value: object) -> None:
    assert unpack(pack(value, limit_bytes=1 << 20, what="it")) == value


def test_token_ids_and_logprobs_come_back_as_arrays_of_their_kind() -> None:
    ids, logprobs = array("i", [0, 151_645, -1]), array("f", [-0.1, 0.0])
    back_ids, back_logprobs = unpack(pack([ids, logprobs], limit_bytes=1 << 20, what="it"))
    assert back_ids == ids
    assert back_ids.typecode == "i"
    assert back_logprobs == logprobs
    assert back_logprobs.typecode == "f"


def test_lone_surrogates_survive() -> None:
    assert unpack(pack("\ud800", limit_bytes=100, what="it")) == "\ud800"


def test_only_large_bodies_that_shrink_are_compressed() -> None:
    assert seal(b"x" * 100, limit_bytes=10_000, what="it")[:1] == PLAIN
    assert seal(b"x" * 5000, limit_bytes=10_000, what="it")[:1] == ZSTD
    assert unseal(seal(b"x" * 5000, limit_bytes=10_000, what="it")) == b"x" * 5000


def test_a_body_over_its_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(TooLarge, match=r"the turn is 2000 bytes, over the limit of 1024 bytes") as caught:
        seal(b"x" * 2000, limit_bytes=1024, what="the turn", job_id="j")
    assert caught.value.job_id == "j"


@pytest.mark.parametrize("value", [float("nan"), object(), {"a": {1, 2}}])
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack_json(value, limit_bytes=100, what="it")


def test_json_comes_back() -> None:
    value = {"a": [1, 2.5, None, 2**80, "\ud800"]}
    assert unpack_json(pack_json(value, limit_bytes=1000, what="it")) == value


@pytest.mark.parametrize("blob", [b"", b"junk", b"\x01junk"])
def test_bytes_that_are_no_blob_are_an_error_of_the_store(blob: bytes) -> None:
    with pytest.raises(StoreError):
        unseal(blob)


def test_an_array_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="array cannot be stored"):
        pack(array("d", [1.0]), limit_bytes=100, what="it")
