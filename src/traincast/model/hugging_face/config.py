"""A ``config.json`` whose values are checked as they are taken."""

from collections.abc import Mapping
from typing import Any

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.units import RANGES, quoted


class Config:
    """The keys of a ``config.json``, or of an object inside it.

    `prefix` is the path of the object in the file, with the dot that follows it; `shown` the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str, shown: str) -> None:
        self.values, self.prefix, self.shown = values, prefix, shown
        self.notes: list[Note] = []
        self.taken: dict[str, int] = {}
        """Numbers that were read, by the path of their key in the file."""

    def has(self, *keys: str) -> bool:
        """Return whether one of the keys is there and not null."""
        return any(self.values.get(key) is not None for key in keys)

    def whole(self, *keys: str, default: int | None = None) -> int:
        """Return the number under the first of the keys that is there and not null, which must be 0 or above."""
        for key in keys:
            raw = self.values.get(key)
            if raw is None:
                continue
            self.taken[f"{self.prefix}{key}"] = number = self._checked(raw, key)
            return number
        if default is None:
            also = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise self.error(f"is missing{also}; is this the config.json of a language model?", keys[0])
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the truth value under a key, or the default where it is missing or null."""
        raw = self.values.get(key)
        if raw is None:
            return default
        if not isinstance(raw, bool):
            raise self.error(f"is {quoted(raw)}; it must be true or false", key)
        return raw

    def word(self, key: str) -> str:
        """Return the text under a key, or an empty one where it is missing or null."""
        raw = self.values.get(key)
        if raw is None:
            return ""
        if not isinstance(raw, str):
            raise self.error(f"is {quoted(raw)}; it must be a text", key)
        return raw

    def words(self, key: str) -> list[str]:
        """Return the texts under a key, or none where it is missing or null."""
        raw = self.values.get(key)
        if raw is None:
            return []
        if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
            raise self.error("must be a list of texts", key)
        return raw

    def wholes(self, key: str) -> list[int]:
        """Return the whole numbers under a key, or none where it is missing or null."""
        raw = self.values.get(key)
        if raw is None:
            return []
        if not isinstance(raw, list):
            raise self.error("must be a list of whole numbers", key)
        return [self._checked(each, key) for each in raw]

    def _checked(self, raw: object, key: str) -> int:
        """Return a whole number of at least 0 that no size of a model exceeds."""
        try:
            return int(RANGES["degree"].checked(raw, least=0))
        except ConfigError as error:
            raise self.error(str(error), key) from None

    def inner(self, key: str) -> "Config":
        """Return the object under a key, an empty one where it is missing; what is kept is kept together."""
        raw = self.values.get(key)
        if raw is not None and not isinstance(raw, dict):
            raise self.error(f"is {quoted(raw)}; it must be an object", key)
        config = Config(raw or {}, f"{self.prefix}{key}.", self.shown)
        config.notes, config.taken = self.notes, self.taken
        return config

    def note(self, code: str, text: str, key: str | None = None) -> None:
        """Keep a note for the model."""
        place = self.shown if key is None else f"{self.shown}: {self.prefix}{key}"
        self.notes.append(Note(code, text, place))

    def error(self, message: str, key: str) -> ConfigError:
        """Return the error about a key's value."""
        return ConfigError(f"{message} (in {self.shown})", f"{self.prefix}{key}")
