"""Dataclass to TOML and back, with every problem reported at once."""

from __future__ import annotations

import contextlib
import dataclasses
import tomllib
from typing import Any, Literal

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from embedkit.config import apply_overrides, flat, from_mapping, load_toml, merge, set_path, setting, to_mapping
from embedkit.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheel:
    radius: float = setting(0.3, "metres", above=0, maximum=2)
    kind: Literal["disc", "spokes"] = setting("disc", "form")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Car:
    name: str = setting(doc="what people call it")
    doors: int = setting(4, "how many", minimum=2)
    load: float = setting(0.5, "share of the space in use", minimum=0, below=1)
    electric: bool = setting(False, "whether it has no engine")
    owner: str | None = setting(None, "who has it")
    front: Wheel = setting(factory=Wheel)
    spare: Wheel | None = setting(None, "in the boot")
    colours: tuple[str, ...] = setting((), "in order of area")
    others: tuple[Wheel, ...] = setting((), "more wheels")
    extras: dict[str, Any] = setting(factory=dict, doc="anything")

    def __post_init__(self):
        if self.doors == 13:
            raise ConfigError("doors brings bad luck")


FULL = {
    "name": "beetle",
    "doors": 2,
    "load": 0.25,
    "electric": True,
    "owner": "me",
    "front": {"radius": 0.4, "kind": "spokes"},
    "spare": {"radius": 0.35, "kind": "disc"},
    "colours": ["red", "blue"],
    "others": [{"radius": 0.1, "kind": "disc"}],
    "extras": {"radio": {"band": "fm"}},
}


def problems_of(mapping, **options):
    with pytest.raises(ConfigError) as caught:
        from_mapping(Car, mapping, **options)
    return caught.value.problems


class TestFromMapping:
    def test_everything(self):
        car = from_mapping(Car, FULL)
        assert car.front == Wheel(radius=0.4, kind="spokes")
        assert car.others == (Wheel(radius=0.1),)
        assert car.colours == ("red", "blue")
        assert car.extras == {"radio": {"band": "fm"}}

    def test_whole_numbers_are_numbers_and_back(self):
        car = from_mapping(Car, {"name": "a", "doors": 3.0, "front": {"radius": 1}})
        assert (car.doors, type(car.doors)) == (3, int)
        assert (car.front.radius, type(car.front.radius)) == (1.0, float)

    @pytest.mark.parametrize(
        ("over", "problem"),
        [
            ({"door": 3}, "door is not a setting; did you mean 'doors'?"),
            ({"front": {"radus": 1}}, "front.radus is not a setting; did you mean 'radius'?"),
            ({"front": {"zzz": 1}}, "front.zzz is not a setting; known here: kind, radius"),
            ({"doors": "four"}, "doors is a whole number, not 'four'"),
            ({"doors": 2.5}, "doors is a whole number, not 2.5"),
            ({"doors": True}, "doors is a whole number, not True"),
            ({"doors": 1}, "doors is at least 2, not 1"),
            ({"doors": 2**63}, "doors is a whole number between -2^63 and 2^63, not 9223372036854775808"),
            ({"doors": 1e300}, f"doors is a whole number between -2^63 and 2^63, not {str(int(1e300))[:59]}…"),
            ({"load": True}, "load is a number, not True"),
            ({"load": 1}, "load is less than 1, not 1.0"),
            ({"load": float("nan")}, "load is a finite number, not nan"),
            ({"load": float("inf")}, "load is a finite number, not inf"),
            ({"load": 10**5000}, "load is a finite number, not an integer of more than 4300 digits"),
            ({"load": -0.1}, "load is at least 0, not -0.1"),
            ({"electric": 1}, "electric is true or false, not 1"),
            ({"name": 5}, "name is a text, not 5"),
            ({"owner": 5}, "owner is a text, not 5"),
            ({"front": "round"}, "front is a table, not 'round'"),
            ({"front": {"radius": 0}}, "front.radius is greater than 0, not 0.0"),
            ({"front": {"radius": 3}}, "front.radius is at most 2, not 3.0"),
            ({"front": {"kind": "square"}}, "front.kind is one of disc, spokes, not 'square'"),
            ({"front": {"kind": ["disc"]}}, "front.kind is one of disc, spokes, not ['disc']"),
            ({"spare": {"radius": -1}}, "spare.radius is greater than 0, not -1.0"),
            ({"colours": "red"}, "colours is a list, not 'red'"),
            ({"others": {"radius": 1}}, "others is a list of tables, [[...]], not {'radius': 1}"),
            ({"colours": ["red", 5]}, "colours[1] is a text, not 5"),
            ({"others": [{}, {"radius": 0}]}, "others[1].radius is greater than 0, not 0.0"),
            ({"extras": []}, "extras is a table, not []"),
            ({"doors": 13}, "doors brings bad luck"),
        ],
        ids=lambda value: str(value) if isinstance(value, str) else "",
    )
    def test_a_problem_is_named_with_its_place(self, over, problem):
        assert problems_of({"name": "a", **over}) == [problem]

    def test_all_problems_at_once(self):
        found = problems_of(
            {"door": 1, "doors": "x", "front": {"radius": 0, "kynd": 1}, "load": 7}, source="a.toml"
        )
        assert sorted(found) == [
            "a.toml: door is not a setting; did you mean 'doors'?",
            "a.toml: doors is a whole number, not 'x'",
            "a.toml: front.kynd is not a setting; did you mean 'kind'?",
            "a.toml: front.radius is greater than 0, not 0.0",
            "a.toml: load is less than 1, not 7.0",
            "a.toml: name is missing: what people call it",
        ]

    @given(
        st.dictionaries(
            st.sampled_from([*FULL, "x"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
                ),
                max_leaves=4,
            ),
        )
    )
    def test_any_file_is_a_config_or_a_config_error(self, mapping):
        with contextlib.suppress(ConfigError):
            car = from_mapping(Car, mapping)
            assert from_mapping(Car, to_mapping(car)) == car


class TestToMapping:
    def test_leads_back(self):
        car = from_mapping(Car, FULL)
        assert to_mapping(car) == FULL
        assert from_mapping(Car, tomllib.loads(tomli_w.dumps(to_mapping(car)))) == car


class TestLoadToml:
    def test_a_byte_order_mark_is_left_out(self, tmp_path):
        (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfname = 'a'\r\n")
        assert load_toml(tmp_path / "a.toml") == {"name": "a"}

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a = 1\nb = x\n", "line 2"),
            (b"a = '\xff'", "not a readable TOML"),
            (
                b"a = [0x" + 5000 * b"f" + b"]",
                "a.toml is not a readable TOML file: Exceeds the limit .4300 digits.",
            ),
            (None, "no file"),
        ],
        ids=["word", "bytes", "digits", "missing"],
    )
    def test_tells_what_is_wrong(self, tmp_path, content, message):
        if content is not None:
            (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load_toml(tmp_path / "a.toml")


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "value"),
        [("3", 3), ("3e-4", 3e-4), ("true", True), ("[1, 2]", [1, 2]), ("'3'", "3"), ("linear", "linear"),
         ("a b", "a b"), ("", ""), ("a=b", "a=b"), ("{x = 1}", {"x": 1}), ("café/😀", "café/😀")],
    )  # fmt: skip
    def test_values_are_toml_and_bare_words_strings(self, text, value):
        assert apply_overrides({}, [f"a.b={text}"]) == {"a": {"b": value}}

    def test_an_integer_that_python_does_not_write_is_a_bare_word(self):
        digits = f"0x{5000 * 'f'}"
        assert apply_overrides({}, [f"a={digits}"]) == {"a": digits}

    def test_lie_over_what_is_there_and_leave_it_alone(self):
        before = {"a": {"b": 1, "c": 2}, "d": 3}
        assert apply_overrides(before, ["a.b=9", "e.f.g=1"]) == {
            "a": {"b": 9, "c": 2},
            "d": 3,
            "e": {"f": {"g": 1}},
        }
        assert before == {"a": {"b": 1, "c": 2}, "d": 3}

    @pytest.mark.parametrize("override", ["a", "=1", " =1", "d.x=1", "list.x=1"])
    def test_invalid_flags_are_refused(self, override):
        with pytest.raises(ConfigError):
            apply_overrides({"d": 3, "list": [{"x": 0}]}, [override])

    def test_errors_name_the_whole_path(self):
        with pytest.raises(ConfigError, match=r"^a\.b\.c\.d cannot be set: a\.b is not a table$"):
            set_path({"a": {"b": 1}}, "a.b.c.d", 2)

    def test_lay_over_takes_any_value_as_it_is(self):
        assert set_path({"a": {"b": 1}}, "a.c", '"1"') == {"a": {"b": 1, "c": '"1"'}}


def test_no_table_replaces_another_value():
    assert merge({"a": {"b": 1, "c": [2]}, "d": 3}, {"a": {"c": [4]}, "d": 5}) == {"a": {"b": 1, "c": [4]}, "d": 5}
    for under in ({"a": {"b": 1}}, {"a": {"b": [{"c": 1}]}}):
        with pytest.raises(ConfigError, match=r"^a\.b\.c cannot be set: a\.b is not a table$"):
            merge(under, {"a": {"b": {"c": 2}}})


def test_flat_names_are_dotted():
    nested = {"a": {"b": 1, "none": None}, "c": [{"d": 2}], "e": [3]}
    assert list(flat(nested)) == [("a.b", 1), ("c[0].d", 2), ("e", [3])]


def test_values_nested_too_deeply_are_a_config_error(tmp_path):
    (tmp_path / "a.toml").write_text(f"a = {'[' * 100_000}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.toml is not a readable TOML file: values are nested too deeply"):
        load_toml(tmp_path / "a.toml")
    assert apply_overrides({}, ["a=" + "[" * 100_000]) == {"a": "[" * 100_000}


def test_numbers_that_python_does_not_convert_are_a_config_error(tmp_path):
    (tmp_path / "a.toml").write_text(f"a = {'1' * 10_000}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.toml is not a readable TOML file: Exceeds the limit"):
        load_toml(tmp_path / "a.toml")
    assert apply_overrides({}, ["a=" + "1" * 10_000]) == {"a": "1" * 10_000}


def test_numbers_of_numpy_are_those_of_python():
    given = {
        **FULL,
        "doors": np.int64(2),
        "load": np.float32(0.25),
        "electric": np.True_,
        "front": {"radius": np.array(0.4), "kind": np.str_("spokes")},
        "extras": {"radio": {"bands": [np.int32(3)]}},
    }
    found = to_mapping(from_mapping(Car, given))
    assert found == {**FULL, "extras": {"radio": {"bands": [3]}}}
    assert tomllib.loads(tomli_w.dumps(found)) == found
    assert problems_of({**FULL, "doors": np.float64(2.5)}) == ["doors is a whole number, not 2.5"]
    assert problems_of({**FULL, "doors": np.array([2])}) == ["doors is a whole number, not array([2])"]
