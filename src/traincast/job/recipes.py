"""Published recipes by name: the job that each sets, and the release that it is of.

The table `data/recipes/recipes.csv.gz` has their settings alone, and nothing of what was measured with them; it is
packed by `studies/pack_recipes.py`. A name is made as Megatron-Bridge names its recipes
(``deepseek_v3_pretrain_256gpu_gb200_fp8mx``), with the release behind an ``@`` where it is not the newest one.
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.errors import UnknownNameError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_for
from traincast.job.draft import Draft
from traincast.job.fields import FIELDS, going_with, said_together
from traincast.job.request import JOB_FIELDS
from traincast.model.load import builtin_table
from traincast.model.model import Model
from traincast.model.table import merged, model_from_table
from traincast.names import find_name, names_with
from traincast.shipped import constant, shipped_packed_text
from traincast.tables import decoded
from traincast.units import GIGA

TABLE = "recipes/recipes.csv.gz"

BASES = {
    "exact": "of this release's recipe",
    "near": "of a recipe near it: of another release, or inferred",
    "stated": "of its table and notes",
}
"""What column ``basis`` says of where the settings are from."""


class PublishedRecipe(Struct, frozen=True, kw_only=True):
    """A published recipe."""

    name: str
    release: str
    """Whose release, and which: ``Megatron-Bridge 26.08``."""
    basis: str
    """``exact``, ``near`` or ``stated``."""
    source: str
    """Repository, file and commit, and what it is called there."""
    model: str
    """Built-in model."""
    model_changes: Mapping[str, str]
    """What is otherwise in its model, by dotted path."""
    gpu: str
    gpus_per_node: int | None
    nic_bytes_per_s: float | None
    fields: Mapping[str, Any]
    """Fields of its job."""

    @property
    def full_name(self) -> str:
        """Its name with its release."""
        return f"{self.name}@{self.release.rpartition(' ')[2]}"

    def loaded_model(self) -> Model | str:
        """Return its model: the name of a built-in one, or that with what is otherwise."""
        if not self.model_changes:
            return self.model
        nested: dict[str, Any] = {}
        for path, text in self.model_changes.items():
            *above, last = path.split(".")
            inner = nested
            for each in above:
                inner = inner.setdefault(each, {})
            inner[last] = float(text) if "." in text else int(text)
        return model_from_table(merged(builtin_table(self.model), nested), self.full_name)

    def cluster(self, gpus: int) -> Cluster:
        """Return the cluster that it ran on, for so many GPUs."""
        return constant(cluster_for, self.gpu, self.gpus_per_node, self.nic_bytes_per_s, gpus)

    def draft(self, over: Draft) -> Draft:
        """Return its job under everything that is said instead, without what then has no meaning."""
        dropped = self._without_meaning(over.fields, over.model)
        fields = {name: value for name, value in self.fields.items() if name not in dropped}
        brief = f"recipe {self.name} of {self.release}"
        text = f"{brief}: its settings are those {BASES[self.basis]} ({self.source})"
        notes = [Note("recipe", text, brief=brief)]
        if dropped:
            text = f"{', '.join(sorted(dropped))} of recipe {self.name} left out: what is given says otherwise"
            notes.append(Note("recipe-left-out", text))
        gpus = over.fields.get("gpus", self.fields["gpus"])
        own = Draft(model=self.loaded_model(), cluster=self.cluster(gpus), fields=fields, notes=tuple(notes))
        return own.under(over)

    def beyond(self, said: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return what it sets beyond fields that are said of a job of some model, without what then has no meaning."""
        dropped = self._without_meaning(said, model)
        return {name: value for name, value in self.fields.items() if name not in dropped and name not in said}

    def _without_meaning(self, said: Mapping[str, Any], model: object) -> set[str]:
        """Return its fields that say something of values which are given otherwise."""
        changed = {name for name, value in said.items() if self.fields.get(name) != value}
        if model is not None and model != self.model:
            changed.add("model")
        gone = {each for name in changed for each in going_with(name)}
        gone |= {each for name in changed if name in FIELDS for each in said_together(name)}
        return gone & {*self.fields} - {*said}


def recipes() -> tuple[PublishedRecipe, ...]:
    """Return all recipes by their names, the newest release of each first."""
    return constant(_read)


def recipe_names() -> list[str]:
    """Return the names of all recipes, without their releases."""
    return list(dict.fromkeys(each.name for each in recipes()))


def find_recipe(name: str) -> PublishedRecipe:
    """Return a recipe by its name: the newest release, or the one behind an ``@``.

    Raises
    ------
    UnknownNameError
        If there is no recipe of that name, or none of that release; the message lists those near it.
    """
    plain, at, release = name.partition("@")
    found = find_name(plain.removesuffix("_config"), recipe_names())
    if found is None:
        raise UnknownNameError("recipe", name, recipe_names())
    known = [each for each in recipes() if each.name == found]
    if not at:
        return known[0]
    wanted = next((each for each in known if release in (each.full_name.partition("@")[2], each.release)), None)
    if wanted is None:
        raise UnknownNameError("release of this recipe", name, [each.full_name for each in known])
    return wanted


def recipe_run_by(name: str, framework: str) -> PublishedRecipe | None:
    """Return the recipe of a name that is of a framework as a table writes it; None where none is known.

    It is of the release that is named there (``Megatron-Bridge, container nemo:26.08``), else the newest.
    """
    plain = find_name(name.removesuffix("_config"), recipe_names())
    makers = ((each, *each.release.rpartition(" ")[::2]) for each in recipes() if each.name == plain)
    own = [(each, release) for each, maker, release in makers if maker and maker in framework]
    return next((each for each, release in own if release in framework), own[0][0] if own else None)


def search_recipes(words: tuple[str, ...]) -> tuple[PublishedRecipe, ...]:
    """Return the recipes whose names or releases have every word in them.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    texts = {f"{each.full_name} {each.release}": each for each in recipes()}
    for word in words:
        texts = {text: texts[text] for text in names_with(word, texts)}
    if not texts:
        raise UnknownNameError("recipe", " ".join(words), recipe_names())
    return tuple(texts.values())


def _read() -> tuple[PublishedRecipe, ...]:
    text = shipped_packed_text(TABLE)
    return tuple(map(_recipe, csv.DictReader(io.StringIO(text))))


def _recipe(row: Mapping[str, str]) -> PublishedRecipe:
    changes = dict(each.split("=", 1) for each in row["model_changes"].split(";") if each)
    nic = row["nic_gbit_per_gpu"]
    return PublishedRecipe(
        **{name: row[name] for name in ("name", "release", "basis", "source", "model", "gpu")},
        model_changes=changes,
        gpus_per_node=int(row["gpus_per_node"]) if row["gpus_per_node"] else None,
        nic_bytes_per_s=float(nic) * GIGA / 8 if nic else None,
        fields={name: from_cell(name, row[name]) for name in JOB_FIELDS if name != "model" and row.get(name)},
    )


def as_cell(value: object) -> str:
    """Return a value of a field as the table writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def from_cell(name: str, text: str) -> Any:  # noqa: ANN401
    """Return the value of a field that a cell says."""
    takes = FIELDS[name].takes
    raw: Any = text
    if takes == "switch":
        raw = text == "true"
    elif takes in ("names", "counts"):
        raw = [int(each) if takes == "counts" else each for each in text.split("+")]
    elif FIELDS[name].is_number:
        raw = float(text) if "." in text else int(text)
    return decoded(name, JOB_FIELDS[name].type, raw)
