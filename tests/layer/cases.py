"""All tables together."""

from layer import gpt3_175b, llama3_70b

CASES = (*gpt3_175b.CASES, *llama3_70b.CASES)


def name_of(case):
    """What a case is called in the names of tests."""
    return f"{case.model}: {case.name}"


def case_of(model, name, *, dense=False):
    """Return the case of that name."""
    (found,) = (each for each in CASES if (each.model, each.name, each.dense) == (model, name, dense))
    return found
