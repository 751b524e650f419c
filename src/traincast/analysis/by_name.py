"""Records that were dicts once, and for one more version can be read as such."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from msgspec import Struct


class IndexedByName(Struct, frozen=True, kw_only=True):
    """A record whose fields can be read by name as well: ``interval["low_s"]`` is ``interval.low_s``.

    Deprecated: write attributes. What is here goes in a later version, and with it this class.
    """

    def _as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them: without those that are None, in a record that omits its defaults."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.__struct_config__.omit_defaults:
            return {name: value for name, value in fields.items() if value is not None}
        return fields

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 of any field
        return self._as_dict()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._as_dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_dict())

    def __len__(self) -> int:
        return len(self._as_dict())

    def __eq__(self, other: object) -> bool:
        """Tell whether another record of this class, or a dict, says the same."""
        return self._as_dict() == other if isinstance(other, Mapping) else super().__eq__(other)

    __hash__ = Struct.__hash__

    def get(self, name: str, default: object = None) -> Any:  # noqa: ANN401 of any field
        """Return a field by its name, or `default` where there is none."""
        return self._as_dict().get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names of the fields."""
        return self._as_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Return what the fields say."""
        return self._as_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the fields by name."""
        return self._as_dict().items()
