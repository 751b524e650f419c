"""All tables together."""

from layer import deepseek_v3, gpt3_175b, llama3_70b, mixtral_8x7b, others

CASES = (*gpt3_175b.CASES, *llama3_70b.CASES, *mixtral_8x7b.CASES, *deepseek_v3.CASES, *others.CASES)


def name_of(case):
    """What a case is called in the names of tests."""
    return f"{case.model}: {case.name}"


def case_of(model, name):
    """Return the case of that name."""
    (found,) = (each for each in CASES if (each.model, each.name) == (model, name))
    return found
