"""What a whole run takes: days, GPU-hours, money, energy and emissions, with the interval of its step.

A run is ``tokens / tokens of a step`` steps, each as long as the one that was forecast over the goodput. All else is
proportional to that time: GPU-hours are GPUs times hours, the energy is what GPUs draw in them times the site's power
usage effectiveness, the emissions are the energy times the intensity of the grid (GHG Protocol, scope 2 guidance,
location-based method). So Llama 3.1 405B counts: 30.84 million GPU-hours at 700 W, 8,930 t (its model card).
"""

from msgspec.structs import replace

from traincast.analysis.comparison import Side
from traincast.analysis.goodput import goodput
from traincast.analysis.summary import Interval, TrainingRun
from traincast.errors import ConfigError
from traincast.job.training_run import RunTerms

_HOUR_S, _DAY_S, _KWH_PER_MWH, _G_PER_T = 3600.0, 86400.0, 1e3, 1e6
_W_PER_MW = 1e6


def training_run(
    terms: RunTerms,
    *,
    step_s: float,
    tokens_per_step: float,
    gpus: int,
    interval: Interval | None = None,
    tdp_w: float | None = None,
) -> TrainingRun:
    """Return what a run takes whose steps all take as long as a given one.

    Parameters
    ----------
    terms : RunTerms
        Its tokens, and what an hour costs and needs.
    step_s, tokens_per_step, gpus : float
        Time of a step without failures, in seconds; its tokens; GPUs.
    interval : Interval, optional
        Where the step lies.
    tdp_w : float, optional
        Thermal design power of a GPU, in W, where `terms` says no power.

    Raises
    ------
    ConfigError
        If no tokens are given, nothing is ever trained, or emissions are asked for and the power is not known.
    """
    if terms.tokens is None:
        raise ConfigError("are not given; a run needs them, such as 15T", "tokens")
    useful = None if terms.failures is None else goodput(terms.failures, gpus, step_s).goodput
    if useful is not None and useful <= 0:
        raise ConfigError("failures come so often that nothing is ever trained; the run has no end", "goodput")
    power_w, pue = _power_w(terms, tdp_w), terms.pue or 1.0
    steps = terms.tokens / tokens_per_step / (useful or 1.0)
    ends = {} if interval is None else {"_low": interval.low_s, "_high": interval.high_s}
    found: dict[str, float | None] = {}
    for end in ("", "_low", "_high"):
        time_s = None if end and end not in ends else steps * ends.get(end, step_s)
        hours = _times(time_s, gpus / _HOUR_S)
        energy_mwh = _times(hours, None if power_w is None else power_w * pue / _W_PER_MW)
        emitted = None if terms.grid_intensity is None else terms.grid_intensity * _KWH_PER_MWH / _G_PER_T
        found |= {
            f"days{end}": _times(time_s, 1 / _DAY_S),
            f"gpu_hours{end}": hours,
            f"cost{end}": _times(hours, terms.gpu_hour_price),
            f"energy_mwh{end}": energy_mwh,
            f"co2_t{end}": _times(energy_mwh, emitted),
        }
    return TrainingRun(
        tokens=terms.tokens,
        tokens_per_step=tokens_per_step,
        gpus=gpus,
        goodput=useful,
        currency=terms.currency,
        gpu_power_w=power_w,
        power_is_design=power_w is not None and terms.gpu_power_w is None,
        pue=pue,
        grid_intensity=terms.grid_intensity,
        **found,  # type: ignore[arg-type]
    )


def _power_w(terms: RunTerms, tdp_w: float | None) -> float | None:
    """Return what a GPU draws; refuse terms of energy where that is not known."""
    power_w = terms.gpu_power_w or tdp_w
    if power_w is None and (terms.grid_intensity is not None or terms.pue is not None):
        name = "grid_intensity" if terms.grid_intensity is not None else "pue"
        raise ConfigError("is about energy, and the power of the GPU is not known; give gpu_power", name)
    return power_w


def with_training_runs(a: Side, b: Side, terms: RunTerms) -> tuple[Side, Side]:
    """Return both sides of a comparison with what a whole run takes, of those that say the tokens of their steps.

    A measured side runs on the GPUs of the other one, where that says their power.

    Raises
    ------
    ConfigError
        If neither side says the tokens of a step.
    """
    if terms.tokens is None:
        return a, b
    found = _with_run(a, b, terms), _with_run(b, a, terms)
    if all(side.training_run is None for side in found):
        text = "neither side says how many tokens a step trains on; compare forecasts or training logs"
        raise ConfigError(text, "tokens")
    return found


def _with_run(side: Side, other: Side, terms: RunTerms) -> Side:
    if side.tokens_per_s_per_gpu is None or side.gpus is None:
        return side
    run = training_run(
        terms,
        step_s=side.step_s,
        tokens_per_step=side.tokens_per_s_per_gpu * side.gpus * side.step_s,
        gpus=side.gpus,
        # What a log says of its interval is how single steps differ, and a run is as long as their mean.
        interval=side.interval if side.what == "simulated" else None,
        tdp_w=other.gpu_tdp_w if side.what == "measured" else side.gpu_tdp_w,
    )
    return replace(side, training_run=run)


def _times(value: float | None, factor: float | None) -> float | None:
    """Multiply numbers; None where one of them is not known."""
    return None if value is None or factor is None else value * factor
