"""Tell by its content whose launch script, recipe or configuration file a file is, and read it as a job.

Told are files that stand for a whole job: launch scripts of any shell, torchtitan's TOML, DeepSpeed's and Accelerate's
settings, recipes of NeMo and Megatron-Bridge, MaxText's YAML, and the ``config.json`` of a model of Hugging Face.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.dialects import draft_like, likely_framework
from traincast.dialects.settings import Values, settings_of_file
from traincast.errors import ConfigError, FormatError
from traincast.files import read_head, read_text
from traincast.job.draft import Draft

HUGGING_FACE = "hugging-face"
"""What the ``config.json`` of a model is told as; it is a model, and no framework's."""
WHAT: Mapping[str, str] = {
    "megatron": "launch script of Megatron-LM",
    "torchtitan": "configuration file of torchtitan",
    "deepspeed": "configuration of DeepSpeed",
    "maxtext": "configuration file of MaxText",
    "accelerate": "configuration of Accelerate",
    "bridge": "recipe of Megatron-Bridge",
    "nemo": "recipe of NeMo",
    HUGGING_FACE: "config.json of a model of Hugging Face",
}
"""What a file is called, by what it is told as."""
_MOST_BYTES = 1 << 18
_SETTINGS = (".json", ".toml", ".yaml", ".yml")
_BY_SETTING: tuple[tuple[str, frozenset[str]], ...] = (
    ("deepspeed", frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})),
    ("accelerate", frozenset({"distributed_type", "compute_environment", "fsdp_config", "deepspeed_config"})),
    ("maxtext", frozenset({"per_device_batch_size", "base_emb_dim", "ici_fsdp_parallelism", "base_config"})),
    ("torchtitan", frozenset({"parallelism", "activation_checkpoint", "training.local_batch_size"})),
    ("nemo", frozenset({"exp_manager", "trainer.num_nodes", "model.micro_batch_size", "model.mcore_gpt"})),
    ("bridge", frozenset({"train.global_batch_size", "train.micro_batch_size", "ddp", "dist"})),
)
"""Settings that only one of them has, or tables; the first of which one is there counts."""
_BY_IMPORT = (("bridge", "megatron.bridge"), ("nemo", "nemo_run"), ("nemo", "nemo.collections"))
_BY_SCRIPT = (
    ("bridge", re.compile(r"\b(?:run_recipe|run_script)\.py\b|megatron\.bridge")),
    ("nemo", re.compile(r"\bnemo llm (?:pretrain|finetune)\b|\bmegatron_gpt_pretraining\.py\b")),
    ("maxtext", re.compile(r"\bmax_?text\.(?:trainers|train)\b", re.IGNORECASE)),
    ("torchtitan", re.compile(r"\btorchtitan(?:\.train|/train\.py)\b|--job\.config[_-]file\b")),
)
"""Scripts and modules that only one of them has, in launch lines."""
_LAUNCHES = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|srun|sbatch|mpirun|accelerate +launch|deepspeed|python3?)\b"
)
_FLAG = re.compile(r"(?:^|\s)--[a-z][\w.-]*", re.IGNORECASE)
_FEWEST_FLAGS = 3


def told_as(path: Path) -> str | None:
    """Return whose file it is: a name of `traincast.dialects.LIKES` or `HUGGING_FACE`; None where nothing tells."""
    try:
        head = read_head(path, _MOST_BYTES).decode("utf-8-sig", "replace")
    except FormatError:
        return None
    if "\0" in head:
        return None
    if path.suffix == ".py":
        return next((like for like, name in _BY_IMPORT if name in head), None)
    if path.suffix.lower() in _SETTINGS:
        return _of_settings(path)
    named = next((like for like, pattern in _BY_SCRIPT if pattern.search(head)), None)
    return named or (likely_framework(_words(head)) if is_script(head) else None)


def is_script(text: str) -> bool:
    """Say whether a text is a launch script or line: something that starts ranks or a shell, and flags."""
    return bool(text.startswith("#!") or _LAUNCHES.search(text)) and len(_FLAG.findall(text)) >= _FEWEST_FLAGS


def _words(text: str) -> list[str]:
    return [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]


def _of_settings(path: Path) -> str | None:
    try:
        found = settings_of_file(str(path))
    except FormatError:
        return None
    if path.suffix == ".json" and {"model_type", "architectures"} <= set(found):
        return HUGGING_FACE
    names = _with_tables(found)
    if path.suffix == ".toml":
        return "torchtitan" if "parallelism" in names or {"training", "optimizer"} <= names else None
    return next((like for like, own in _BY_SETTING if own & names), None)


def _with_tables(found: Values) -> set[str]:
    """Return the dotted names of settings and of the tables that they are in."""
    return {".".join(parts[:end]) for name in found for parts in [name.split(".")] for end in range(1, len(parts) + 1)}


def words_of_file(like: str, path: str) -> tuple[str, ...]:
    """Return a file as the words that the reader of a framework takes: a script as its text, others by their path.

    Raises
    ------
    FormatError
        If a script cannot be read.
    """
    if Path(path).suffix.lower() in (*_SETTINGS, ".py"):
        return ("--job.config_file", path) if like == "torchtitan" else (path,)
    return (f"{read_text(Path(path), _MOST_BYTES)} ",)


def draft_of_file(path: Path) -> Draft | None:
    """Return the job that a launch script, recipe or configuration file describes; None of other files.

    Raises
    ------
    TraincastError
        As of `traincast.dialects.draft_like`.
    """
    like = told_as(path)
    if like is None:
        return None
    note = Note("taken-as", f"taken as a {WHAT[like]}; --like {like} -- {path} says so", str(path))
    if like == HUGGING_FACE:
        note = Note("taken-as", f"taken as the {WHAT[like]}", str(path))
        return Draft(model=str(path), notes=(note,))
    found = draft_like(like, words_of_file(like, str(path)))
    return replace(found, notes=(note, *found.notes))


def draft_of_words(like: str, words: list[str], *, strict: bool) -> Draft:
    """Read pasted words of a framework (`draft_like`), of which one may be a file that is the launch script itself.

    Raises
    ------
    ConfigError
        If further words stand next to a script.
    TraincastError
        As of `draft_like`.
    """
    files = [place for place, word in enumerate(words) if _stands_alone(words, place)]
    scripts = [place for place in files if not words[place].lower().endswith((*_SETTINGS, ".py"))]
    if scripts and len(words) > 1:
        text = (
            f"{words[scripts[0]]} is a script, and other words stand next to it; give it alone, and options before --"
        )
        raise ConfigError(text, "like")
    if scripts:
        return draft_like(like, words_of_file(like, words[0]), strict=strict)
    if like == "torchtitan" and files:
        words = [
            each
            for place, word in enumerate(words)
            for each in (words_of_file(like, word) if place in files else (word,))
        ]
    return draft_like(like, words, strict=strict)


def _stands_alone(words: list[str], place: int) -> bool:
    """Say whether a word is a file that belongs to no flag and that no launcher before it starts."""
    word, before = words[place], words[place - 1] if place else ""
    if word.startswith("-") or "=" in word or not Path(word).is_file() or before.startswith("-"):
        return False
    return place == 0 or not any(_LAUNCHES.fullmatch(each.rpartition("/")[2]) for each in words[:place])
