"""MFU and HFU for people, always with the peak that they are of."""

from traincast.units import format_share

_HALF = "16-bit"


def utilisation(
    mfu: float | None,
    hfu: float | None,
    dtype: str | None,
    mfu_16_bit: float | None = None,
    hfu_16_bit: float | None = None,
) -> str:
    """Return MFU and HFU of a peak, and of the 16-bit one where that is another; an empty text where there is none.

    Parameters
    ----------
    mfu, hfu : float or None
        Shares of the peak of `dtype`.
    dtype : str or None
        Type of that peak; None is the 16-bit one.
    mfu_16_bit, hfu_16_bit : float or None
        Shares of the 16-bit peak.

    Returns
    -------
    str
        ``MFU 44.0 %, HFU 58.6 % of the fp8 peak (87.9 %, 117.2 % of the 16-bit peak)``.
    """
    shares = _shares(mfu, hfu, ("MFU ", "HFU "))
    if not shares:
        return ""
    beside = "" if dtype in (None, "bf16", "fp16") else _shares(mfu_16_bit, hfu_16_bit, ("", ""))
    half = f" ({beside} of the {_HALF} peak)" if beside else ""
    return f"{shares} of the {dtype or _HALF} peak{half}"


def _shares(mfu: float | None, hfu: float | None, names: tuple[str, str]) -> str:
    known = [f"{name}{format_share(share)}" for name, share in zip(names, (mfu, hfu), strict=True) if share is not None]
    return ", ".join(known)
