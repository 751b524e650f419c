"""What of the software a job may choose beside its framework: CUDA graphs, dispatch of tokens, fused kernels, recipes.

A choice that the job leaves open is the framework's. Names are those of Megatron-LM (megatron/core/transformer/
transformer_config.py: cuda_graph_impl, cuda_graph_scope, moe_token_dispatcher_type, moe_flex_dispatcher_backend,
fp8_recipe), where ``flex`` with its backend is one choice here.
"""

from typing import Any

from traincast.errors import ConfigError
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.job.frameworks import FULL_ITERATION, Framework
from traincast.job.job import JobRequest
from traincast.model.recipes import RECIPES, recipes_of

GRAPH_IMPLS = ("none", "local", "transformer_engine", "full_iteration")
"""What captures CUDA graphs: nothing, Megatron-LM or Transformer Engine module by module, or the whole step at once."""

FP8_RECIPES = ("none", *RECIPES)
"""How types of 8 and 4 bits are scaled (`traincast.model.recipes`)."""

_SWITCHES = (
    *("moe_paged_stash", "fused_router", "fused_permute"),
    *("te_op_fuser", "fp8_attention", "bf16_first_last"),
)


def decide_software(request: JobRequest, framework: Framework, precision: str) -> dict[str, Any]:
    """Return what the job or its framework chooses, by the field of a `Job`.

    Raises
    ------
    ConfigError
        If two choices contradict each other.
    """
    graphs, scope = _graphs(request, framework)
    said = {name: getattr(request, name) for name in _SWITCHES}
    return {
        **{name: getattr(framework, name, False) if value is None else value for name, value in said.items()},
        "cuda_graphs": graphs,
        "cuda_graph_scope": scope,
        "fp8_recipe": _recipe(request, framework, precision),
    }


def _graphs(request: JobRequest, framework: Framework) -> tuple[bool, tuple[str, ...]]:
    """Return whether there are CUDA graphs, and of which modules; none named are whole layers."""
    if framework.cuda_graphs and not _says_graphs(request):
        return True, () if request.model.experts is None else framework.moe_cuda_graph_scope
    impl, scope = request.cuda_graph_impl, request.cuda_graph_scope or ()
    graphs = framework.cuda_graphs or bool(scope) if request.cuda_graphs is None else request.cuda_graphs
    if impl is not None:
        graphs = impl != "none"
    if request.cuda_graphs is not None and graphs != request.cuda_graphs:
        raise ConfigError(f"is {impl}, but cuda_graphs is {str(request.cuda_graphs).lower()}", "cuda_graph_impl")
    if scope and not graphs:
        raise ConfigError(f"is {' '.join(scope)}, but no CUDA graphs are captured", "cuda_graph_scope")
    if FULL_ITERATION in scope and len(scope) > 1:
        raise ConfigError(f"is {' '.join(scope)}; {FULL_ITERATION} is all of them", "cuda_graph_scope")
    return graphs, (FULL_ITERATION,) if impl == FULL_ITERATION else scope


def _says_graphs(request: JobRequest) -> bool:
    said = (request.cuda_graphs, request.cuda_graph_impl, request.cuda_graph_scope)
    return any(each is not None for each in said)


def _recipe(request: JobRequest, framework: Framework, precision: str) -> str:
    known = recipes_of(precision) or ("none",)
    said = request.fp8_recipe
    if said is not None and said not in known and precision in ELEMENT_TYPES:
        remedy = f"; precision {RECIPES[said].dtype} is scaled so" if said in RECIPES else ""
        raise ConfigError(f"is {said}, but GEMMs run in {precision} ({', '.join(known)}){remedy}", "fp8_recipe")
    return said or (framework.fp8_recipe if framework.fp8_recipe in known else known[0])
