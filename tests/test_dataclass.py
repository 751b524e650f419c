"""Data classes that are made quickly: all that those of the standard library do."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, InitVar, field, fields, replace
from typing import ClassVar

import pytest

from traincast.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A frozen class with slots, defaults and values that do not count."""

    x: int
    y: float = 2.0
    tags: list[str] = field(default_factory=list, hash=False)
    note: str = field(default="", compare=False, repr=False)
    doubled: int = field(init=False)
    kinds: ClassVar[int] = 3

    def __post_init__(self):
        object.__setattr__(self, "doubled", 2 * self.x)


def made(decorator, **options):
    """Return a class with a field of every kind, as a decorator makes it."""

    class Kinds:
        """Some fields."""

        first: int
        second: str = "b"
        third: list[int] = field(default_factory=list)
        fourth: int = field(default=4, init=False)
        fifth: dict[str, int] = field(default_factory=dict, init=False)
        last: float = field(default=1.5, kw_only=True)

    return decorator(**options)(Kinds)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("kw_only", [False, True])
def test_a_class_is_what_the_standard_library_makes(frozen, slots, kw_only):
    options = {"frozen": frozen, "slots": slots, "kw_only": kw_only}
    ours, theirs = made(dataclass, **options), made(dataclasses.dataclass, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [each.name for each in fields(ours)] == [each.name for each in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert hasattr(ours(first=1), "__dict__") == (not slots)
    assert repr(ours(first=1, last=2.0)) == repr(theirs(first=1, last=2.0))
    assert dataclasses.asdict(ours(first=1, third=[2])) == dataclasses.asdict(theirs(first=1, third=[2]))
    assert (ours.__hash__ is None) == (theirs.__hash__ is None) == (not frozen)
    with pytest.raises(TypeError):
        ours()
    # A default that is made is made for each.
    assert ours(first=1).third is not ours(first=1).third


def test_values_that_count_make_two_equal():
    assert Point(1, note="a") == Point(1, note="b")
    assert Point(1) != Point(2)
    assert Point(1) != (1, 2.0, [], "", 2)
    assert hash(Point(1, tags=["a"])) == hash(Point(1, tags=["b"], note="c"))
    assert repr(Point(1)) == "Point(x=1, y=2.0, tags=[], doubled=2)"
    assert replace(Point(1), x=4).doubled == 8


def test_one_field_and_none_are_compared_too():
    @dataclass(frozen=True)
    class One:
        value: object

    @dataclass(frozen=True)
    class Nothing:
        pass

    assert One((1,)) == One((1,)) != One(1)
    assert {One(1), One(1)} == {One(1)}
    assert Nothing() == Nothing() != One(1)
    assert len({Nothing(), Nothing()}) == 1


def test_what_is_frozen_cannot_be_changed():
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x


def test_copies_are_equal_and_their_own():
    point = Point(1, tags=["a"])
    for other in (copy.deepcopy(point), pickle.loads(pickle.dumps(point))):  # noqa: S301 - our own bytes
        assert other == point
        assert other.tags is not point.tags
        assert other.doubled == 2


def test_methods_of_the_class_itself_stay():
    @dataclass(frozen=True)
    class Own:  # noqa: PLW1641 - it is given one
        value: int

        def __eq__(self, other):
            return True

        def __repr__(self):
            return "mine"

    assert Own(1) == Own(2)
    assert repr(Own(1)) == "mine"
    assert hash(Own(1)) == hash((1,))

    @dataclass(eq=False)
    class ByIdentity:
        value: int

    assert ByIdentity(1) != ByIdentity(1)
    assert len({ByIdentity(1), ByIdentity(1)}) == 2


def test_bases_and_what_is_only_passed_on_are_as_in_the_standard_library():
    @dataclass(frozen=True)
    class Named:
        name: str
        old: InitVar[str | None] = None

        def __post_init__(self, old):
            object.__setattr__(self, "name", old or self.name)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Further(Point):
        z: int

    @dataclasses.dataclass(frozen=True)
    class FromElsewhere(Point):
        z: int = 0

    @dataclasses.dataclass(frozen=True, slots=True)
    class Theirs:
        x: int

    @dataclass(frozen=True, slots=True)
    class Ours(Theirs):
        y: int

    assert Ours(1, 2) == Ours(1, 2) != Ours(1, 3)
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)  # noqa: S301 - our own bytes
    with pytest.raises(TypeError, match="frozen"):

        @dataclass
        class _Thawed(Point):
            z: int = 0

    assert Named("a", old="b").name == "b"
    assert str(inspect.signature(Named)).startswith("(name: str, old: ")
    with pytest.raises(FrozenInstanceError):
        Ours(1, 2).y = 3
    assert Further(1, z=3) == Further(1, z=3) != Further(1, z=4)
    assert (Further(1, z=3).doubled, FromElsewhere(1).z) == (2, 0)
    with pytest.raises(FrozenInstanceError):
        FromElsewhere(1).z = 2
