"""Numbers as text: never 0 % or 100 % for a share that only rounds to it."""

import math

NONE = "–"
# A number and its unit stay on one line.
_SPACE = "\N{NO-BREAK SPACE}"


def percent(share: float, decimals: int = 1) -> str:
    r"""Returns a share as a percentage, with more decimals where it needs them.

    Example:
    >>> percent(0.9356), percent(0.99996), percent(1.0), percent(0.0)
    ('93.6\xa0%', '99.996\xa0%', '100\xa0%', '0\xa0%')
    """
    if math.isnan(share):
        return NONE
    # Rounds away the noise of summation order: a half stays a half.
    value = round(100 * share, 9)
    if value in (0.0, 100.0):
        return f"{value:.0f}{_SPACE}%"
    places = decimals
    while float(f"{value:.{places}f}") in (0.0, 100.0):
        places += 1
    return f"{value:.{places}f}{_SPACE}%"


def round_percent(share: float) -> str:
    """Returns a share that a user chose, such as a level, with its own digits."""
    return f"{100 * share:g}{_SPACE}%"


def percent_range(low: float, high: float, decimals: int = 1) -> str:
    r"""Returns an interval of shares.

    Example:
    >>> percent_range(0.931, 0.9409)
    '93.1 to 94.1\xa0%'
    """
    ends = percents(low, high, decimals=decimals)
    return " to ".join([ends[0].removesuffix(f"{_SPACE}%"), ends[1]])


def percents(*shares: float, decimals: int = 1) -> list[str]:
    """Returns shares as percentages with enough decimals to tell them apart."""
    for places in range(decimals, 9):
        texts = [percent(share, places) for share in shares]
        if len(set(texts)) == len(set(shares)):
            break
    return texts


def points(gap: float) -> str:
    """Returns a difference of shares in percentage points."""
    text = percent(abs(gap)).removesuffix(f"{_SPACE}%")
    return f"{text} point" if text == "1" else f"{text} points"


def count(number: float) -> str:
    """Returns a number of samples, a fraction if ties, weights or soft labels give one.

    Example:
    >>> count(8000.0), count(12.5)
    ('8,000', '12.5')
    """
    number = round(number, 6)
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def decimal(value: float, form: str = ".4f") -> str:
    """Returns a number of a table."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return format(value, form).replace("-", "−")


def scaled(value: float, unit: str, sign: str = "") -> str:
    """Returns a metric, or with sign="+" a difference, as a number of its unit."""
    if unit == "share" and not sign:
        return percent(value, 2).removesuffix(f"{_SPACE}%")
    if unit in ("share", "points") and not math.isnan(value):
        return decimal(100 * value, f"{sign}.2f")
    return decimal(value, f"{sign}.4f")


def suffix(unit: str) -> str:
    """Returns what follows a number of a unit; NLL, in nats, goes without."""
    return {"share": f"{_SPACE}%", "points": f"{_SPACE}points"}.get(unit, "")


def value_of(value: float, unit: str) -> str:
    """Returns a metric in its unit."""
    return NONE if math.isnan(value) else scaled(value, unit) + suffix(unit)


def interval_of(low: float, high: float, unit: str) -> str:
    """Returns the interval of a metric in its unit."""
    if unit == "share":
        return percent_range(low, high, 2)
    return f"{scaled(low, unit)} to {value_of(high, unit)}"


def signed(value: float, unit: str) -> str:
    """Returns a difference with its sign; of shares, in points."""
    if math.isnan(value):
        return NONE
    unit = "points" if unit == "share" else unit
    return scaled(value, unit, "+") + suffix(unit)
