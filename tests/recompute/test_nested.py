"""Fresh copies of nested containers."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple

import numpy as np
import paddle
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.recompute.nested import rebuild

Pair = namedtuple("Pair", "one other")


def same(tensor):
    return tensor


nested = st.recursive(
    st.one_of(st.integers(), st.text(max_size=2), st.none(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.lists(inner, max_size=3).map(deque),
    ),
    max_leaves=12,
)


def containers(value):
    if isinstance(value, (list, deque, dict)):
        yield value
    if isinstance(value, (list, deque, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


@given(nested)
def test_equal_in_containers_of_its_own(value):
    made = rebuild(value, same)
    assert made == value and type(made) is type(value)
    assert not {id(each) for each in containers(made)} & {id(each) for each in containers(value)}


def test_tensors_are_replaced_wherever_they_are():
    tensor, other = paddle.ones([1]), paddle.zeros([1])
    value = {"a": [tensor, (tensor, 1)], "b": Pair(tensor, None), "c": deque([tensor])}
    made = rebuild(value, lambda _: other)
    assert made["a"][0] is made["a"][1][0] is made["b"].one is made["c"][0] is other
    assert type(made["b"]) is Pair
    assert value["a"][0] is tensor


def test_what_is_one_stays_one_and_a_cycle_ends():
    inner = [1]
    value = {"a": inner, "b": (inner, inner)}
    value["itself"] = value
    made = rebuild(value, same)
    assert made["itself"] is made and made is not value
    assert made["a"] is made["b"][0] is made["b"][1]
    assert made["a"] is not inner


def test_kinds_are_kept():
    counts = defaultdict(list, a=[1])
    array = np.arange(3)
    made = rebuild([counts, OrderedDict(b=1), {3}, array, (1, 2)], same)
    assert made[0].default_factory is list and made[0] == counts and made[0] is not counts
    assert type(made[1]) is OrderedDict
    assert made[2] == {3}
    assert made[3] is not array and (made[3] == array).all()


def test_a_tuple_in_which_nothing_is_replaced_is_itself():
    value = (1, (2, "a"), paddle.ones([1]))
    assert rebuild(value, same) is value


def test_other_mappings():
    class Encoding(UserDict):
        pass

    class Output(OrderedDict):
        pass

    tensor = paddle.ones([1])
    seen = []
    encoding, output = Encoding(x=tensor), Output(y=tensor)
    made = rebuild([encoding, output], lambda each: seen.append(each) or each)
    assert type(made[0]) is Encoding and made[0] is not encoding and made[0].data is not encoding.data
    assert made[1] is output
    assert len(seen) == 2
